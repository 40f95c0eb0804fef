"""What clients say of the prefix cache, ``cache_salt``, and what they are told: cached tokens."""

import logging
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.contract import SequenceRequest
from coordinator.http.auth.api_keys import parse_api_keys
from coordinator.http.bodies.bodies import HEAVY_BYTES
from coordinator.http.cache_salt import salt_of
from coordinator.http.http_settings import HttpSettings
from tests.coordinator import anthropic_sdk
from tests.coordinator.answers import CHAT, COMPLETIONS, USER, check_error, events, post
from tests.coordinator.anthropic_sdk import MESSAGES
from tests.coordinator.fake_core import ClientOf, FakeCore, Says
from tests.coordinator.responses import sdk as responses_sdk

RESPONSES = "/v1/responses"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": USER},
    COMPLETIONS: {"prompt": "Hi"},
    RESPONSES: {"input": "Hi"},
    MESSAGES: {"model": "tiny", "max_tokens": 8, "messages": USER},
}
KEYS = {name: f"sk-{name}-0123456789abcdef" for name in ("alice", "bob")}
API_KEYS = parse_api_keys("\n".join(f"{name}:{key}" for name, key in KEYS.items()), "KEYS")
SALT = "pepper & salt"
CACHED = 3


async def salt(client: httpx.AsyncClient, core: FakeCore, path: str = CHAT, **fields: Any) -> str:
    """The salt that the workers get."""
    response = await client.post(path, json=BODIES[path] | fields)
    assert response.status_code == 200, response.text
    return core.streams[-1].spec.salt


@pytest.mark.parametrize("path", BODIES)
async def test_requests_of_the_same_salt_share_prefixes(
    says: Says, client_of: ClientOf, path: str
) -> None:
    client = client_of(core := says())
    assert await salt(client, core, path) == await salt(client, core, path, cache_salt=None) == ""
    salted = await salt(client, core, path, cache_salt=SALT)
    assert salted == await salt(client, core, path, cache_salt=SALT)
    assert len({"", salted, await salt(client, core, path, cache_salt=SALT + " ")}) == 3
    assert salted == await salt(client, core, CHAT, cache_salt=SALT), "also in another API"


@pytest.mark.parametrize("path", BODIES)
async def test_a_salt_is_a_text_that_is_not_empty_or_long(
    says: Says, client_of: ClientOf, path: str
) -> None:
    client = client_of(core := says())
    for wrong in ("", SALT * 100, 7, [SALT], True):
        response = await client.post(path, json=BODIES[path] | {"cache_salt": wrong})
        assert response.status_code == 400
        assert "cache_salt" in response.text
        assert SALT not in response.text
        if path != MESSAGES:
            check_error(response, 400, "cache_salt")
    assert core.streams == []


async def test_a_body_that_is_read_elsewhere_keeps_its_salt(
    says: Says, client_of: ClientOf
) -> None:
    client = client_of(core := says())
    large = {"unknown": "x" * HEAVY_BYTES, "cache_salt": SALT}
    assert await salt(client, core, **large) == await salt(client, core, cache_salt=SALT)


async def test_large_bodies_are_read_where_keys_are_isolated(
    says: Says, client_of: ClientOf
) -> None:
    client = client_of(core := says(), api_keys=API_KEYS, prefix_cache_isolation="key")
    client.headers["authorization"] = f"Bearer {KEYS['alice']}"
    assert await salt(client, core, unknown="x" * HEAVY_BYTES) == await salt(client, core) != ""


async def test_all_keys_share_prefixes_unless_they_are_isolated(
    says: Says, client_of: ClientOf
) -> None:
    async def salts(isolation: str, **fields: Any) -> list[str]:
        client = client_of(core := says(), api_keys=API_KEYS, prefix_cache_isolation=isolation)
        found = []
        for key in KEYS.values():
            client.headers["authorization"] = f"Bearer {key}"
            found.append(await salt(client, core, **fields))
        return found

    assert await salts("off") == ["", ""]
    alice, bob = await salts("off", cache_salt=SALT)
    assert alice == bob != ""
    isolated = [*await salts("key"), *await salts("key", cache_salt=SALT)]
    assert len({"", alice, *isolated}) == 6
    assert await salts("key") == isolated[:2]


@given(*[st.tuples(st.sampled_from(["", "a", "ab"]), st.none() | st.text(min_size=1))] * 2)
def test_salts_differ_where_the_key_or_the_text_does(
    one: tuple[str, str | None], other: tuple[str, str | None]
) -> None:
    found = [salt_of(text, key) for key, text in (one, other)]
    assert (found[0] == found[1]) == (one == other)


def test_keys_are_isolated_only_where_there_are_keys() -> None:
    with pytest.raises(ValueError, match=r"^prefix_cache_isolation: 'key' needs API keys"):
        HttpSettings("tiny", prefix_cache_isolation="key")
    with pytest.raises(ValueError, match=r"^prefix_cache_isolation: 'tenant' is neither off nor"):
        HttpSettings("tiny", prefix_cache_isolation="tenant")  # type: ignore[arg-type]


async def test_no_log_has_a_salt(
    says: Says, client_of: ClientOf, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    client = client_of(core := says())
    assert await salt(client, core, cache_salt=SALT) not in caplog.text
    assert caplog.records
    assert SALT not in str([vars(record) for record in caplog.records])
    assert SALT not in repr(core.streams[0].spec)


async def test_usage_tells_how_much_of_the_prompt_was_cached(
    says: Says, client_of: ClientOf
) -> None:
    client = client_of(says(reused=lambda _: CACHED))
    for path in (CHAT, COMPLETIONS):
        body = BODIES[path]
        whole = (await post(client, path, **body))["usage"]
        assert whole["prompt_tokens_details"] == {"cached_tokens": CACHED}
        for options in ({"include_usage": True}, {"continuous_usage_stats": True}):
            chunks = await events(client, path, **body, stream_options=options)
            assert chunks[-1]["usage"] == whole
        assert chunks[0]["usage"]["prompt_tokens_details"] == {"cached_tokens": CACHED}


async def test_usage_of_a_response(says: Says, client_of: ClientOf) -> None:
    client = client_of(says(reused=lambda _: CACHED))
    logprobs = {"include": ["message.output_text.logprobs"]}
    for response in (
        await responses_sdk.create(client),
        await responses_sdk.create(client, **logprobs),
        (await responses_sdk.stream(client))[-1].response,
    ):
        assert response.usage is not None
        assert response.usage.input_tokens_details.cached_tokens == CACHED
        total = response.usage.input_tokens + response.usage.output_tokens
        assert response.usage.total_tokens == total


async def test_input_tokens_of_a_message_are_without_the_cached_ones(
    says: Says, client_of: ClientOf
) -> None:
    cold = (await anthropic_sdk.create(client_of(says()))).usage
    client = client_of(says(reused=lambda _: CACHED))
    started, *_ = streamed = await anthropic_sdk.stream(client)
    for usage in (
        (await anthropic_sdk.create(client)).usage,
        started.message.usage,
        anthropic_sdk.message_of(streamed).usage,
    ):
        assert usage.input_tokens == cold.input_tokens - CACHED
        assert (usage.cache_read_input_tokens, usage.cache_creation_input_tokens) == (CACHED, 0)


async def test_each_prompt_counts_once_with_what_no_choice_had_to_compute(
    says: Says, client_of: ClientOf
) -> None:
    """The first choice of a prompt computes what the second one then finds."""
    given = iter((2, 9, 4, 1) * 2)

    def reused(_: SequenceRequest) -> int:
        return next(given)

    client = client_of(says(reused=reused))
    body: dict[str, Any] = {"prompt": ["one two three", "four five six"], "n": 2}
    whole = (await post(client, COMPLETIONS, **body))["usage"]
    assert whole["prompt_tokens_details"] == {"cached_tokens": 2 + 1}
    chunks = await events(client, COMPLETIONS, **body, stream_options={"include_usage": True})
    assert chunks[-1]["usage"] == whole


async def test_without_output_the_cached_tokens_are_told_too(
    says: Says, client_of: ClientOf
) -> None:
    client = client_of(says(reused=lambda _: CACHED))
    answer = await post(client, COMPLETIONS, prompt="Hi", max_tokens=0, echo=True)
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": CACHED}
    assert answer["usage"]["completion_tokens"] == 0
