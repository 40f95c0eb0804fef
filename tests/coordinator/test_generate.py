"""Answers of the two generating endpoints, whole and streamed."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx
import msgspec
import pytest

from coordinator.core.contract import GenerationFailed
from coordinator.http.response_schemas import ChatCompletion, ChatCompletionChunk, Completion
from coordinator.text.tokenizer import Tokenizer
from tests.coordinator.fake_core import FakeCore

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
USER = [{"role": "user", "content": "Hi"}]
TEXT = "Hello, wörld! 🙂"

Says = Callable[..., FakeCore]
ClientOf = Callable[..., httpx.AsyncClient]


async def post(client: httpx.AsyncClient, path: str, **body: Any) -> dict[str, Any]:
    response = await client.post(path, json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    msgspec.json.decode(response.content, type=ChatCompletion if path == CHAT else Completion)
    return answer


async def events(client: httpx.AsyncClient, path: str, **body: Any) -> list[dict[str, Any]]:
    """The data of a stream's events; checks that nothing else is in it."""
    response = await client.post(path, json={**body, "stream": True})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    *blocks, done, rest = response.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    assert all(block.startswith("data: {") and "\n" not in block for block in blocks)
    chunks = [json.loads(block.removeprefix("data: ")) for block in blocks]
    model = ChatCompletionChunk if path == CHAT else Completion
    for chunk in chunks:
        if "error" not in chunk:
            msgspec.json.decode(json.dumps(chunk), type=model)
    return chunks


async def test_chat_whole(says: Says, client_of: ClientOf) -> None:
    core = says(TEXT)
    answer = await post(client_of(core), CHAT, model="tiny", messages=USER)
    assert answer["choices"][0]["message"] == {
        "role": "assistant", "content": TEXT, "refusal": None,
    }  # fmt: skip
    assert answer["choices"][0]["finish_reason"] == "stop"
    spec = core.streams[0].spec
    num_output = len(core.streams[0].script)
    assert answer["usage"]["prompt_tokens"] == len(spec.prompt_ids)
    assert answer["usage"]["completion_tokens"] == num_output
    assert core.outcomes == ["finished"]


async def test_chat_stream(says: Says, client_of: ClientOf) -> None:
    core = says(TEXT)
    chunks = await events(client_of(core), CHAT, messages=USER)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert [("role" in delta) for delta in deltas] == [True] + [False] * (len(deltas) - 1)
    assert "".join(delta.get("content", "") for delta in deltas) == TEXT
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["stop"]
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert "usage" not in chunks[0]
    assert core.outcomes == ["finished"]


async def test_completion_stream_never_starts_with_empty_text(
    says: Says, client_of: ClientOf
) -> None:
    # The smiley takes several tokens, none of which is text alone.
    chunks = await events(client_of(says("🙂 ok")), COMPLETIONS, prompt="x", return_token_ids=True)
    assert chunks[0]["choices"][0]["text"].startswith("🙂")
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "🙂 ok"


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_usage_comes_in_a_chunk_of_its_own_when_asked_for(
    says: Says, client_of: ClientOf, path: str
) -> None:
    body = {"messages": USER} if path == CHAT else {"prompt": "Hi"}
    options = {"include_usage": True}
    chunks = await events(client_of(says()), path, stream_options=options, **body)
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["total_tokens"] > 0
    assert all(chunk["choices"] and chunk["usage"] is None for chunk in chunks[:-1])
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = await events(client_of(says()), path, stream_options=options, **body)
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[0] >= 1


@pytest.mark.parametrize(
    ("prompt", "num_prompts"), [("ab", 1), (["ab", "c"], 2), ([65, 66], 1), ([[65], [66, 67]], 2)]
)
async def test_four_shapes_of_prompt_times_n(
    says: Says, client_of: ClientOf, tokenizer: Tokenizer, prompt: Any, num_prompts: int
) -> None:
    core = says("ok")
    answer = await post(client_of(core), COMPLETIONS, prompt=prompt, n=2, return_token_ids=True)
    choices = answer["choices"]
    assert [choice["index"] for choice in choices] == list(range(2 * num_prompts))
    sent = [list(stream.spec.prompt_ids) for stream in core.streams]
    assert [choice["prompt_token_ids"] for choice in choices] == sent
    assert sent[0] == sent[1]
    assert len(set(map(tuple, sent))) == num_prompts
    assert answer["usage"]["prompt_tokens"] == sum(map(len, sent)) // 2
    assert len({stream.spec.request_id for stream in core.streams}) == 2 * num_prompts


async def test_streamed_choices_keep_their_indices(
    client_of: ClientOf, tokenizer: Tokenizer
) -> None:
    words = ["one two three", "four", "five six"]
    eos = tokenizer.info.eos_ids[0]

    def script(spec: Any) -> list[int]:
        index = int(spec.request_id.rpartition("-")[2])
        return [*tokenizer.encode(words[index]), eos]

    for path, body in ((CHAT, {"messages": USER}), (COMPLETIONS, {"prompt": "x"})):
        chunks = await events(client_of(FakeCore(script)), path, n=3, **body)
        texts = ["", "", ""]
        roles = [0, 0, 0]
        for chunk in chunks:
            (choice,) = chunk["choices"]
            delta = choice.get("delta", {})
            texts[choice["index"]] += delta.get("content", "") + choice.get("text", "")
            roles[choice["index"]] += "role" in delta
        assert texts == words
        assert roles == ([1, 1, 1] if path == CHAT else [0, 0, 0])


async def test_token_ids_on_request(says: Says, client_of: ClientOf) -> None:
    core = says(TEXT)
    client = client_of(core)
    whole = await post(client, CHAT, messages=USER, return_token_ids=True)
    stream = core.streams[0]
    assert whole["choices"][0]["token_ids"] == stream.script
    assert whole["prompt_token_ids"] == list(stream.spec.prompt_ids)
    assert whole["choices"][0]["prompt_token_ids"] == whole["prompt_token_ids"]
    chunks = await events(client, CHAT, messages=USER, return_token_ids=True)
    assert [i for c in chunks for i in c["choices"][0]["token_ids"]] == stream.script
    assert [("prompt_token_ids" in c) for c in chunks] == [True] + [False] * (len(chunks) - 1)


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_stop_string_ends_it_early(says: Says, client_of: ClientOf, streamed: bool) -> None:
    core = says("one two three four five")
    body: dict[str, Any] = {"prompt": "x", "stop": ["three", "zebra"]}
    client = client_of(core)
    if streamed:
        chunks = await events(client, COMPLETIONS, **body)
        text = "".join(chunk["choices"][0]["text"] for chunk in chunks)
        reason = chunks[-1]["choices"][0]["finish_reason"]
    else:
        choice = (await post(client, COMPLETIONS, **body))["choices"][0]
        text, reason = choice["text"], choice["finish_reason"]
    assert (text, reason) == ("one two ", "stop")
    assert core.outcomes == ["stopped"]
    answer = await post(client, COMPLETIONS, **body, include_stop_str_in_output=True)
    assert answer["choices"][0]["text"] == "one two three"
    answer = await post(client, COMPLETIONS, **{**body, "stop": "ive no"})
    assert answer["choices"][0]["text"] == "one two three four five"


async def test_length_stops_and_its_token_counts(says: Says, client_of: ClientOf) -> None:
    client = client_of(says(TEXT))
    for field in ("max_tokens", "max_completion_tokens"):
        answer = await post(client, CHAT, messages=USER, **{field: 2})
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["usage"]["completion_tokens"] == 2


async def test_stop_ids_and_their_text(
    says: Says, client_of: ClientOf, tokenizer: Tokenizer
) -> None:
    core = says("abc def")
    client = client_of(core)
    extra = core.script(None)[1]  # type: ignore[arg-type]
    answer = await post(client, COMPLETIONS, prompt="x", stop_token_ids=[extra])
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == 2
    assert tokenizer.decode([extra]) not in answer["choices"][0]["text"]
    assert core.streams[0].spec.stop.stop_token_ids == (*tokenizer.info.eos_ids, extra)
    num_tokens = len(core.streams[0].script)
    await post(client, COMPLETIONS, prompt="x", ignore_eos=True, max_tokens=num_tokens)
    assert core.streams[1].spec.stop.stop_token_ids == ()


async def test_special_tokens_are_shown_only_on_request(says: Says, client_of: ClientOf) -> None:
    core = says("a<|endoftext|>b")
    client = client_of(core)
    body = {"prompt": "x", "ignore_eos": True, "max_tokens": len(core.script(None))}  # type: ignore[arg-type]
    answer = await post(client, COMPLETIONS, **body)
    assert answer["choices"][0]["text"] == "ab"
    answer = await post(client, COMPLETIONS, **body, skip_special_tokens=False)
    assert answer["choices"][0]["text"] == "a<|endoftext|>b<|im_end|>"


@pytest.mark.parametrize("prompt", ["héllo ", [72, 73]])
async def test_echo(
    says: Says, client_of: ClientOf, tokenizer: Tokenizer, prompt: str | list[int]
) -> None:
    client = client_of(says("there"))
    before = prompt if isinstance(prompt, str) else tokenizer.decode(prompt)
    answer = await post(client, COMPLETIONS, prompt=prompt, echo=True)
    assert answer["choices"][0]["text"] == before + "there"
    chunks = await events(client, COMPLETIONS, prompt=prompt, echo=True)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == before + "there"


async def test_chat_logprobs(says: Says, client_of: ClientOf, tokenizer: Tokenizer) -> None:
    core = says(TEXT)
    client = client_of(core)
    answer = await post(client, CHAT, messages=USER, logprobs=True, top_logprobs=3)
    content = answer["choices"][0]["logprobs"]["content"]
    assert len(content) == len(core.streams[0].script)
    assert b"".join(bytes(entry["bytes"]) for entry in content[:-1]).decode() == TEXT
    assert [len(entry["top_logprobs"]) for entry in content] == [3] * len(content)
    chunks = await events(client, CHAT, messages=USER, logprobs=True)
    assert core.streams[1].spec.sampling.logprobs == 0
    assert sum(len(c["choices"][0]["logprobs"]["content"]) for c in chunks) == len(content)
    assert (await post(client, CHAT, messages=USER))["choices"][0]["logprobs"] is None
    assert core.streams[2].spec.sampling.logprobs is None


async def test_completion_logprobs(says: Says, client_of: ClientOf) -> None:
    client = client_of(says(TEXT))
    answer = await post(client, COMPLETIONS, prompt="x", logprobs=2)
    found = answer["choices"][0]["logprobs"]
    assert len({len(values) for values in found.values()}) == 1
    assert found["text_offset"][0] == 0
    assert found["text_offset"] == sorted(found["text_offset"])
    for name, value, top in zip(
        found["tokens"], found["token_logprobs"], found["top_logprobs"], strict=True
    ):
        assert top[name] == value
        assert len(top) >= 2
    assert any(name.startswith("bytes:\\x") for name in found["tokens"])


async def test_sampling_fields_reach_the_core(says: Says, client_of: ClientOf) -> None:
    core = says()
    client = client_of(core)
    await post(
        client, COMPLETIONS, prompt="x", temperature=0.5, top_p=0.9, top_k=-1, min_p=0.1, seed=7,
        presence_penalty=1, frequency_penalty=-1, repetition_penalty=1.1, logit_bias={"5": 2},
        min_tokens=2, max_tokens=9,
    )  # fmt: skip
    sampling = core.streams[0].spec.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.9, 0)
    assert (sampling.min_p, sampling.seed, sampling.logit_bias) == (0.1, 7, {5: 2.0})
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (1.0, -1.0)
    assert sampling.repetition_penalty == 1.1
    stop = core.streams[0].spec.stop
    assert (stop.min_tokens, stop.max_tokens) == (2, 9)
    await post(client, COMPLETIONS, prompt="x")
    defaults = core.streams[1].spec.sampling
    assert (defaults.temperature, defaults.top_p, defaults.top_k) == (1.0, 0.95, 20)


async def test_top_p_of_zero_is_greedy(says: Says, client_of: ClientOf) -> None:
    core = says()
    await post(client_of(core), COMPLETIONS, prompt="x", temperature=0.5, top_p=0)
    sampling = core.streams[0].spec.sampling
    assert (sampling.temperature, sampling.top_p) == (0.0, 1.0)


async def test_seeds(says: Says, client_of: ClientOf) -> None:
    core = says()
    client = client_of(core)

    async def seeds_of(**body: Any) -> list[int]:
        before = len(core.streams)
        await post(client, COMPLETIONS, **body)
        return [stream.spec.sampling.seed for stream in core.streams[before:]]

    first = await seeds_of(prompt="x", n=3, seed=-5)
    assert first == await seeds_of(prompt="x", n=3, seed=-5)
    assert len(set(first)) == 3
    assert first[:1] == await seeds_of(prompt="x", seed=-5)
    assert first * 2 == await seeds_of(prompt=["x", "y"], n=3, seed=-5)
    assert all(0 <= seed < 2**63 for seed in first)
    assert len(set(await seeds_of(prompt=["x", "y"], n=3))) == 6


async def test_without_max_tokens_the_context_is_the_limit(says: Says, client_of: ClientOf) -> None:
    for max_seq_len, limit in ((512, 512), (None, 1024), (10**6, 1024)):
        core = says(max_seq_len=max_seq_len)
        await post(client_of(core), COMPLETIONS, prompt=[65] * 10)
        assert core.streams[0].spec.stop.max_tokens == limit - 10


async def test_min_tokens_holds_stop_strings_off(says: Says, client_of: ClientOf) -> None:
    client = client_of(says("abababab"))
    answer = await post(client, COMPLETIONS, prompt="x", stop="b", min_tokens=3)
    assert answer["usage"]["completion_tokens"] > 3


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


async def test_each_token_leaves_at_once(says: Says, tokenizer: Tokenizer) -> None:
    """The bytes of a token are sent before the next one exists."""
    from coordinator.http.api import create_app
    from coordinator.http.http_settings import HttpSettings

    core = says("one two three", gate=asyncio.Semaphore(0))
    app = create_app(core, tokenizer, HttpSettings("tiny"))
    sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    received: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    body = json.dumps({"messages": USER, "stream": True}).encode()
    received.put_nowait({"type": "http.request", "body": body})
    scope: dict[str, Any] = {
        "type": "http", "method": "POST", "path": CHAT, "raw_path": CHAT.encode(), "headers": [],
        "query_string": b"", "asgi": {"version": "3.0"}, "scheme": "http", "root_path": "",
    }  # fmt: skip
    running = asyncio.create_task(app(scope, received.get, sent.put))  # type: ignore[arg-type]
    async with asyncio.timeout(5):
        core.gate.release()  # type: ignore[union-attr]
        assert (await sent.get())["type"] == "http.response.start"
        for _ in range(3):
            assert (await sent.get())["body"].startswith(b"data: {")
            assert sent.empty()
            core.gate.release()  # type: ignore[union-attr]
        received.put_nowait({"type": "http.disconnect"})
        await running
    assert core.outcomes == ["cancelled"]


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
