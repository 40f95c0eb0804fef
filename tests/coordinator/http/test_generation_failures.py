"""Requests that fail before or after their first token, or are not accepted."""

import pytest

from coordinator.core.contract import GenerationFailed, Overloaded
from coordinator.text.tokenizer import Tokenizer
from tests.coordinator.answers import CHAT, COMPLETIONS, USER, events
from tests.coordinator.fake_core import ClientOf, FakeCore, Says


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_failure_before_the_first_token_has_its_own_status(
    client_of: ClientOf, path: str, streamed: bool
) -> None:
    core = FakeCore(lambda _: [], failure=GenerationFailed("not_finite", "NaN"))
    body = {"messages": USER} if path == CHAT else {"prompt": "x"}
    response = await client_of(core).post(path, json={**body, "stream": streamed})
    assert response.status_code == 500
    assert response.json()["error"] == {
        "message": "NaN", "type": "server_error", "param": None, "code": "not_finite",
    }  # fmt: skip


@pytest.mark.parametrize("code", ["shutting_down", "worker_lost", "lost_at_worker", "stale_offer"])
async def test_what_fails_for_the_moment_may_be_asked_again(client_of: ClientOf, code: str) -> None:
    core = FakeCore(lambda _: [], failure=GenerationFailed(code, "no time left"))
    response = await client_of(core).post(COMPLETIONS, json={"prompt": "x"})
    assert response.status_code == 503
    assert int(response.headers["retry-after"]) >= 1


async def test_what_takes_too_long_is_a_504(client_of: ClientOf) -> None:
    core = FakeCore(lambda _: [], failure=GenerationFailed("timeout", "not done after 5 s"))
    response = await client_of(core).post(COMPLETIONS, json={"prompt": "x"})
    assert response.status_code == 504
    assert response.json()["error"]["code"] == "timeout"


async def test_a_failure_later_is_an_event_and_ends_the_other_choices(
    client_of: ClientOf, tokenizer: Tokenizer
) -> None:
    failure = GenerationFailed("peer_gone", "the worker died")
    core = FakeCore(lambda _: tokenizer.encode("two words"), failure=failure)
    chunks = await events(client_of(core), CHAT, messages=USER, n=2)
    assert chunks[-1]["error"]["code"] == "peer_gone"
    assert [chunk for chunk in chunks[:-1] if "error" in chunk] == []
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks[:-1])
    assert "failed" in core.outcomes
    assert set(core.outcomes) <= {"failed", "cancelled"}


async def test_a_core_that_drains_is_not_called_overloaded(
    says: Says, client_of: ClientOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = says()

    def drains(_: object) -> None:
        raise Overloaded("it takes no new request", retry_after_s=2.0, code="draining")

    monkeypatch.setattr(core, "submit", drains)
    response = await client_of(core).post(CHAT, json={"messages": USER})
    assert response.status_code == 503
    assert response.headers["retry-after"] == "2"
    error = response.json()["error"]
    assert (error["code"], error["type"]) == ("draining", "server_error")


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_overloaded_core_takes_all_choices_or_none(
    says: Says, client_of: ClientOf, streamed: bool
) -> None:
    core = says(accept=2)
    body = {"prompt": "x", "n": 3, "stream": streamed}
    response = await client_of(core).post(COMPLETIONS, json=body)
    assert response.status_code == 503
    assert response.headers["retry-after"] == "3"
    assert response.json()["error"]["code"] == "overloaded"
    assert core.outcomes == ["cancelled", "cancelled"]


async def test_choices_that_could_never_be_held_are_refused_for_good(
    says: Says, client_of: ClientOf
) -> None:
    core = says(max_open_tokens=20)
    asked = {"prompt": [1] * 7, "n": 3, "max_tokens": 1}
    refused = await client_of(core).post("/v1/completions", json=asked)
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    assert "21 tokens in all choices; this server holds at most 20" in refused.text
    assert not core.streams
