"""Answers of the two generating endpoints, whole and streamed."""

import asyncio
import json
import sys
from functools import partial
from typing import Any

import msgspec
import pytest

from coordinator.core.contract import SequenceRequest
from coordinator.http.answer import CompletionWriter, Head
from coordinator.http.answer_form import tool_parameters
from coordinator.http.chat_writer import ChatWriter
from coordinator.http.choice import Delta, choices_of, collected
from coordinator.http.preparation import parse
from coordinator.http.request_schemas import ChatRequest, GenerationRequest
from coordinator.http.response_schemas import Usage
from coordinator.text.answer_parser import AnswerParser
from coordinator.text.dialect import Dialect
from coordinator.text.tokenizer import Tokenizer
from coordinator.text.tool_formats import QWEN3_CODER
from tests.coordinator.answers import CHAT, COMPLETIONS, USER, events, post
from tests.coordinator.fake_core import ClientOf, FakeCore, FakeStream, Says
from tests.coordinator.little_work import little_work
from transport.wire.sampling import SamplingParams, StopRule
from transport.wire.token_ids import packed

TEXT = "Hello, wörld! 🙂"


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
    chunks = await events(client_of(says("🙂 ok")), COMPLETIONS, prompt="x")
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
    body: dict[str, Any] = {"prompt": "x", "stop": ["three", "zebra"], "max_tokens": 99}
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


SCORED: dict[str, dict[str, Any]] = {
    "chat": {"messages": USER, "logprobs": True, "top_logprobs": 20},
    "completion": {"prompt": "a", "logprobs": 20},
}


@pytest.mark.parametrize("kind", SCORED)
async def test_the_end_of_a_long_answer_leaves_the_event_loop_to_others(
    tokenizer: Tokenizer, kind: Any
) -> None:
    """Log-probabilities are written as their tokens come."""
    request = parse(kind, msgspec.json.encode(SCORED[kind]))
    assert isinstance(request, GenerationRequest)
    spec = SequenceRequest("r", packed([65]), SamplingParams(logprobs=20), StopRule(10_000))
    stream = FakeStream(spec, [65 + i % 20 for i in range(10_000)], None, None)
    outputs = await collected(choices_of(request, [spec], [stream], tokenizer))
    head = Head("r", "tiny", logprobs=True, prompt_ids=None)
    writer: CompletionWriter | ChatWriter = CompletionWriter(head, n=1, echoes=None)
    if isinstance(request, ChatRequest):
        writer = ChatWriter(head, request, AnswerParser, thinks=False)
    with little_work(0.1):
        made = msgspec.json.encode(writer.body(outputs, Usage.of(1, 10_000)))
    assert made.count(b"-19.5") >= 10_000


def test_a_stream_holds_only_the_parameters_of_its_tools() -> None:
    function = {"name": "f", "description": "d" * 1000, "parameters": {"type": "object"}}
    body = {"messages": USER, "tools": [{"type": "function", "function": function}]}
    request = parse("chat", msgspec.json.encode(body))
    assert isinstance(request, ChatRequest)
    assert request.tools is not None
    kept = [request, request.messages[0], request.tools[0], request.tools[0].function]
    before = [sys.getrefcount(each) for each in kept]
    parser = partial(Dialect(tools=QWEN3_CODER).answer_parser, None, tool_parameters(request))
    head = Head("r", "tiny", logprobs=False, prompt_ids=None)
    writer = ChatWriter(head, request, parser, thinks=False)
    writer.chunk(0, Delta(text="a"), None)
    assert [sys.getrefcount(each) for each in kept] == before


async def test_each_token_leaves_at_once(says: Says, tokenizer: Tokenizer) -> None:
    """The bytes of a token are sent before the next one exists."""
    from coordinator.http.http_settings import HttpSettings
    from tests.coordinator.apps import make_app

    core = says("one two three", gate=asyncio.Semaphore(0))
    app = make_app(core, tokenizer, HttpSettings("tiny"))
    sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    received: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    body = json.dumps({"messages": USER, "stream": True}).encode()
    received.put_nowait({"type": "http.request", "body": body})
    scope: dict[str, Any] = {
        "type": "http", "method": "POST", "path": CHAT, "raw_path": CHAT.encode(),
        "headers": [(b"content-type", b"application/json")],
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
