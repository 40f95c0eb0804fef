"""Responses whole and streamed, over a core that says what a test tells it to say. Everything is
parsed by the official client's types."""

import asyncio
from typing import Any

import pytest

from coordinator.core.contract import GenerationFailed
from coordinator.http.auth.api_keys import parse_api_keys
from tests.coordinator.answers import check_error
from tests.coordinator.fake_core import ClientOf, Says
from tests.coordinator.responses.grammar import check
from tests.coordinator.responses.sdk import create, parsed, parsed_stream, shape, stream
from tests.coordinator.stores import eventually

ADD = {
    "type": "function",
    "name": "add",
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "why": {"type": "string"}},
        "required": ["a"],
    },
    "strict": False,
}
CALL = (
    "<tool_call>\n<function=add>\n<parameter=a>\n5\n</parameter>\n"
    '<parameter=why>\nso "it" is\n</parameter>\n</function>\n</tool_call>'
)
ARGUMENTS = '{"a": 5, "why": "so \\"it\\" is"}'


async def test_a_text(says: Says, client_of: ClientOf) -> None:
    client = client_of(says("Hello, wörld! 🙂"))
    response = await create(client, instructions="Be kind.", metadata={"a": "b"}, user="me")
    assert response.output_text == "Hello, wörld! 🙂"
    assert response.status == "completed"
    assert response.model == "tiny"
    assert (response.instructions, response.metadata, response.user) == (
        "Be kind.", {"a": "b"}, "me",
    )  # fmt: skip
    assert (response.tool_choice, response.parallel_tool_calls) == ("auto", True)
    usage = response.usage
    assert usage is not None
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert usage.output_tokens_details.reasoning_tokens == 0
    (item,) = response.output
    assert item.id == f"msg_{response.id.removeprefix('resp_')}_0"


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("Hello, wörld! 🙂", {}),
        ("two and two\n</think>\n\nfour", {"reasoning": {"effort": "low"}}),
        (
            "two and two\n</think>\n\nfour",
            {"reasoning": {"effort": "low", "summary": "auto"}},
        ),
        (f"hm\n</think>\n\nWait.\n\n{CALL}\n{CALL}",
         {"reasoning": {"effort": "max"}, "tools": [ADD]}),
        (f"{CALL}\nand then {CALL}", {"tools": [ADD], "tool_choice": "auto"}),
        ("a b c", {"include": ["message.output_text.logprobs"], "top_logprobs": 2}),
        ("thinking\n</think>\n\na 🙂 b",
         {"reasoning": {"effort": "low"}, "include": ["message.output_text.logprobs"]}),
        ("one two STOP three", {"stop": ["STOP"]}),
        ("", {}),
        ("only a thought", {"reasoning": {"effort": "low"}}),
    ],
)  # fmt: skip
async def test_streamed_and_whole_are_the_same(
    says: Says, client_of: ClientOf, text: str, fields: dict[str, Any]
) -> None:
    client = client_of(says(text))
    whole = await create(client, **fields)
    events = await stream(client, **fields)
    items = check(events)
    assert list(map(shape, items)) == list(map(shape, whole.output))
    assert events[-1].response.usage == whole.usage
    assert events[-1].response.status == whole.status == "completed"


async def test_calls_and_thoughts_become_items(says: Says, client_of: ClientOf) -> None:
    client = client_of(says(f"hm, add\n</think>\n\nLet me.\n\n{CALL}"))
    response = await create(client, tools=[ADD], reasoning={"effort": "medium"})
    thought, message, call = response.output
    assert thought.type == "reasoning"
    assert thought.content is not None
    assert (thought.content[0].text, thought.summary) == ("hm, add", [])
    assert message.type == "message"
    assert message.content[0].type == "output_text"
    assert message.content[0].text == "Let me."
    assert call.type == "function_call"
    assert (call.name, call.arguments, call.status) == ("add", ARGUMENTS, "completed")
    assert call.call_id.startswith("call_")
    assert response.usage is not None
    assert 0 < response.usage.output_tokens_details.reasoning_tokens < response.usage.output_tokens


async def test_a_thought_as_its_summary(says: Says, client_of: ClientOf) -> None:
    client = client_of(says("hm\n</think>\n\nyes"))
    response = await create(client, reasoning={"effort": "low", "summary": "detailed"})
    thought = response.output[0]
    assert thought.type == "reasoning"
    assert [part.text for part in thought.summary] == ["hm"]
    assert thought.content is None


async def test_an_output_that_is_cut_off_is_incomplete(says: Says, client_of: ClientOf) -> None:
    client = client_of(says(f"Wait. {CALL}"))
    fields: dict[str, Any] = {"tools": [ADD], "max_output_tokens": 60}
    response = await create(client, **fields)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.completed_at is None
    message, call = response.output
    assert (message.status, call.status) == ("completed", "incomplete")
    events = await stream(client, **fields)
    assert events[-1].type == "response.incomplete"
    assert list(map(shape, check(events))) == list(map(shape, response.output))


@pytest.mark.parametrize(
    ("said", "fields"),
    [(CALL, {"stop": ["is"]}), (CALL[: CALL.index("is")], {}), (CALL[: CALL.index("5")], {})],
)
async def test_a_call_that_a_stop_string_or_the_model_cuts_off_is_incomplete(
    says: Says, client_of: ClientOf, said: str, fields: dict[str, Any]
) -> None:
    client = client_of(says(f"Wait. {said}"))
    response = await create(client, tools=[ADD], **fields)
    assert response.status == "completed"
    message, call = response.output
    assert (message.status, call.status) == ("completed", "incomplete")
    found = list(map(shape, check(await stream(client, tools=[ADD], **fields))))
    assert found == list(map(shape, response.output))


async def test_a_failure_while_streaming(says: Says, client_of: ClientOf) -> None:
    core = says()
    core.script = lambda _: [72, 105]
    core.failure = GenerationFailed("worker_lost", "the worker is gone")
    answer = await client_of(core).post("/v1/responses", json={"input": "Hi", "stream": True})
    events = parsed_stream(answer.text)
    check(events)
    error, failed = events[-2:]
    assert (error.type, error.code, error.message) == ("error", "worker_lost", "the worker is gone")
    assert failed.type == "response.failed"
    assert failed.response.status == "failed"
    assert failed.response.error.code == "server_error"
    assert failed.response.error.type == "worker_lost"


async def test_a_failure_before_anything_is_sent_has_its_status(
    says: Says, client_of: ClientOf
) -> None:
    core = says()
    core.script = lambda _: []
    core.failure = GenerationFailed("worker_lost", "the worker is gone")
    for fields in ({}, {"stream": True}):
        answer = await client_of(core).post("/v1/responses", json={"input": "Hi", **fields})
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "worker_lost"


async def test_logprobs_are_those_of_the_text(says: Says, client_of: ClientOf) -> None:
    client = client_of(says("a thought\n</think>\n\nyes 🙂!"))
    fields: dict[str, Any] = {
        "reasoning": {"effort": "low"},
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 3,
    }
    for response in (
        await create(client, **fields),
        (await stream(client, **fields))[-1].response,
    ):
        part = response.output[1].content[0]
        assert b"".join(bytes(token.bytes) for token in part.logprobs) == part.text.encode()
        assert all(len(token.top_logprobs) == 3 for token in part.logprobs)
    plain = await create(client, reasoning={"effort": "low"})
    assert plain.output[1].content[0].logprobs == []  # type: ignore[union-attr]


async def test_a_client_that_leaves_cancels(says: Says, client_of: ClientOf) -> None:
    core = says(gate=asyncio.Semaphore(0))
    client = client_of(core)
    task = asyncio.create_task(client.post("/v1/responses", json={"input": "Hi"}))
    await eventually(lambda: bool(core.streams))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert core.outcomes == ["cancelled"]


async def test_tokens_are_charged_as_those_of_chats_are(says: Says, client_of: ClientOf) -> None:
    keys = parse_api_keys("alice:sk-alice-0123456789abcdef:9:30", "KEYS")
    client = client_of(says("Hello there"), api_keys=keys)
    client.headers["authorization"] = "Bearer sk-alice-0123456789abcdef"
    first = await client.post("/v1/responses", json={"input": "Hi"})
    assert first.status_code == 200
    assert first.headers["x-request-id"]
    assert first.headers["x-ratelimit-limit-tokens"] == "30"
    usage = parsed(first.content).usage
    assert usage is not None
    assert usage.total_tokens > 30
    error = check_error(await client.post("/v1/responses", json={"input": "Hi"}), 429)
    assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")


async def test_integers_may_be_written_as_floats(says: Says, client_of: ClientOf) -> None:
    core = says("Hello")
    body = b'{"input": "x", "max_output_tokens": 64.0, "top_k": 5.0}'
    answer = await client_of(core).post("/v1/responses", content=body)
    assert answer.status_code == 200, answer.text
    spec = core.streams[0].spec
    assert (spec.stop.max_tokens, spec.sampling.top_k) == (64, 5)
