"""The Messages API through the HTTP edge, read by the types of Anthropic's SDK."""

from typing import Any

import pytest
from anthropic.types import MessageTokensCount

from coordinator.core.contract import GenerationFailed
from coordinator.http.bodies.bodies import HEAVY_BYTES
from coordinator.http.messages.requests import IGNORED
from coordinator.text.tokenizer import Tokenizer
from tests.coordinator.anthropic_sdk import (
    HEADERS,
    MESSAGES,
    asked,
    check_error,
    create,
    events_of,
    message_of,
    stream,
    strictly,
)
from tests.coordinator.fake_core import ClientOf, FakeCore, Says
from tests.coordinator.http.test_chat_forms import ARGUMENTS, CALL

COUNT = f"{MESSAGES}/count_tokens"
ADD = {
    "name": "add",
    "input_schema": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "why": {"type": "string"}},
        "required": ["a"],
    },
}


async def test_text_whole_and_streamed(says: Says, client_of: ClientOf) -> None:
    client = client_of(says("Hello, wörld! 🙂"))
    message = await create(client)
    assert [block.text for block in message.content] == ["Hello, wörld! 🙂"]
    assert (message.id[:4], message.model, message.role) == ("msg_", "tiny", "assistant")
    assert message.stop_reason == "end_turn"
    streamed = message_of(await stream(client))
    assert [block.text for block in streamed.content] == ["Hello, wörld! 🙂"]
    assert streamed.usage == message.usage
    assert streamed.id != message.id


async def test_a_tool_call(says: Says, client_of: ClientOf) -> None:
    client = client_of(says(f"Let me add.\n\n{CALL}\n{CALL}"))
    for message in (
        await create(client, tools=[ADD]),
        message_of(await stream(client, tools=[ADD])),
    ):
        text, *calls = message.content
        assert text.text == "Let me add."
        assert [(call.name, call.input) for call in calls] == [("add", ARGUMENTS)] * 2
        assert len({call.id for call in calls}) == 2
        assert message.stop_reason == "tool_use"


async def test_without_tools_a_call_is_text(says: Says, client_of: ClientOf) -> None:
    client = client_of(says(CALL))
    for given in ({}, {"tools": [ADD], "tool_choice": {"type": "none"}}):
        message = await create(client, **given)
        assert [block.text for block in message.content] == [CALL]
        assert message.stop_reason == "end_turn"


async def test_a_thought(says: Says, client_of: ClientOf) -> None:
    client = client_of(says("two and two\n</think>\n\nfour"))
    thinking = {"type": "enabled", "budget_tokens": 300}
    for message in (
        await create(client, thinking=thinking),
        message_of(await stream(client, thinking={"type": "adaptive"})),
    ):
        thought, answer = message.content
        assert (thought.thinking, answer.text) == ("two and two", "four")
        assert thought.signature
    hidden = await create(client, thinking=thinking | {"display": "omitted"})
    assert (hidden.content[0].thinking, hidden.content[1].text) == ("", "four")


async def test_what_the_core_is_asked(says: Says, client_of: ClientOf) -> None:
    core = says()
    await create(
        client_of(core), temperature=0.5, top_k=7, max_tokens=40,
        tools=[ADD], tool_choice={"type": "tool", "name": "add"},
        thinking={"type": "enabled", "budget_tokens": 9},
    )  # fmt: skip
    (spec,) = (each.spec for each in core.streams)
    assert (spec.sampling.temperature, spec.sampling.top_k) == (0.5, 7)
    assert spec.stop.max_tokens == 40
    assert spec.sampling.constraint is not None
    assert spec.sampling.constraint.thought_budget == 9
    assert "<function=add>" in spec.sampling.constraint.grammar


@pytest.mark.parametrize(("parallel", "constrained"), [(True, False), (False, True)])
async def test_one_call_at_most_is_enforced(
    says: Says, client_of: ClientOf, parallel: bool, constrained: bool
) -> None:
    core = says()
    choice = {"type": "auto", "disable_parallel_tool_use": not parallel}
    await create(client_of(core), tools=[ADD], tool_choice=choice)
    assert (core.streams[0].spec.sampling.constraint is not None) is constrained


async def test_a_form(says: Says, client_of: ClientOf) -> None:
    core = says('{"a": 5}')
    client = client_of(core)
    form = {"type": "json_schema", "schema": ADD["input_schema"]}
    await create(client, output_config={"format": form})
    assert core.streams[0].spec.sampling.constraint is not None
    bad = {"type": "json_schema", "schema": {"type": "nothing"}}
    response = await client.post(MESSAGES, json=asked(output_config={"format": bad}))
    message = check_error(response, 400, "invalid_request_error")
    assert message.startswith("output_config.format.schema: ")


async def test_a_stop_sequence_is_named(says: Says, client_of: ClientOf) -> None:
    client = client_of(says("one two three"))
    stops = ["never", " two", "three"]
    for message in (
        await create(client, stop_sequences=stops),
        message_of(await stream(client, stop_sequences=stops)),
    ):
        assert [block.text for block in message.content] == ["one"]
        assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", " two")


async def test_max_tokens_may_exceed_the_context(client_of: ClientOf, tokenizer: Tokenizer) -> None:
    client = client_of(FakeCore(lambda _: tokenizer.encode("on and on " * 200), max_seq_len=64))
    full = await create(client, max_tokens=32_000)
    assert full.stop_reason == "model_context_window_exceeded"
    assert full.usage.input_tokens + full.usage.output_tokens == 64
    short = await create(client, max_tokens=3)
    assert (short.stop_reason, short.usage.output_tokens) == ("max_tokens", 3)
    response = await client.post(MESSAGES, json=asked(system="on and on " * 200))
    assert "prompt is too long" in check_error(response, 400, "invalid_request_error")


async def test_tokens_are_counted_as_the_prompt_has_them(says: Says, client_of: ClientOf) -> None:
    client = client_of(core := says())
    for given in ({}, {"system": "Be brief."}, {"thinking": {"type": "adaptive"}}):
        message = await create(client, **given)
        body = {key: value for key, value in asked(**given).items() if key != "max_tokens"}
        response = await client.post(COUNT, json=body, headers=HEADERS)
        assert response.status_code == 200, response.text
        counted = strictly(MessageTokensCount, response.content)
        assert counted.input_tokens == message.usage.input_tokens
    assert len(core.streams) == 3
    check_error(await client.post(COUNT, json={"model": "tiny"}), 400, "invalid_request_error")
    other = {"model": "other", "messages": asked()["messages"]}
    check_error(await client.post(COUNT, json=other), 404, "not_found_error")


async def test_a_heavy_body_is_read_in_another_process(says: Says, client_of: ClientOf) -> None:
    core = says(max_seq_len=10**6)
    calls = [{"type": "tool_use", "id": "t", "name": "add", "input": {"why": "x" * HEAVY_BYTES}}]
    turns = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": calls},
        {"role": "user", "content": "Go on."},
    ]
    message = await create(
        client_of(core), messages=turns, tools=[ADD], max_tokens=32_000,
        thinking={"type": "adaptive", "display": "omitted"}, stop_sequences=["!"],
        output_config={"format": {"type": "json_schema", "schema": {"type": "object"}}},
    )  # fmt: skip
    assert message.stop_sequence == "!"
    assert core.streams[0].spec.sampling.constraint is not None


@pytest.mark.parametrize(
    ("failure", "status", "kind"),
    [
        ("worker_lost", 503, "api_error"),
        ("not_finite", 500, "api_error"),
        ("timeout", 504, "timeout_error"),
        ("constraint_failed", 400, "invalid_request_error"),
    ],
)
async def test_failures(
    client_of: ClientOf, tokenizer: Tokenizer, failure: str, status: int, kind: str
) -> None:
    failed = GenerationFailed(failure, "it failed")
    response = await client_of(FakeCore(lambda _: [], failure=failed)).post(MESSAGES, json=asked())
    assert check_error(response, status, kind) == "it failed"
    core = FakeCore(lambda _: tokenizer.encode("two words"), failure=failed)
    response = await client_of(core).post(MESSAGES, json=asked(stream=True))
    assert response.status_code == 200
    *begun, error = events_of(response.text)
    assert begun[0].type == "message_start"
    assert (error.error.type, error.error.message) == (kind, "it failed")
    assert error.request_id == response.headers["request-id"]


async def test_errors_have_anthropics_form_on_these_paths_only(
    says: Says, client_of: ClientOf
) -> None:
    client = client_of(says(accept=0), max_body_bytes=10_000)
    overloaded = await client.post(MESSAGES, json=asked())
    check_error(overloaded, 529, "overloaded_error")
    assert int(overloaded.headers["retry-after"]) >= 1
    check_error(await client.post(MESSAGES, json=asked(model="x")), 404, "not_found_error")
    check_error(await client.post(MESSAGES, content=b"{"), 400, "invalid_request_error")
    check_error(await client.get(MESSAGES), 405, "invalid_request_error")
    check_error(await client.post(f"{MESSAGES}/batches"), 404, "not_found_error")
    large = await client.post(MESSAGES, json=asked(system="x" * 20_000))
    # Anthropic documents this type; its client's union of errors does not have it.
    assert (large.status_code, large.json()["error"]["type"]) == (413, "request_too_large")
    elsewhere = await client.post("/v1/messagesx")
    assert set(elsewhere.json()["error"]) == {"message", "type", "param", "code"}
    assert "request-id" not in elsewhere.headers


async def test_what_is_ignored_on_purpose_may_be_anything(says: Says, client_of: ClientOf) -> None:
    client = client_of(says())
    plain = (await create(client)).content
    for value in (True, "x", {"a": "b"}, [1]):
        assert (await create(client, **dict.fromkeys(IGNORED, value))).content == plain


async def test_a_system_message_between_others_is_merged_where_the_template_refuses_it(
    says: Says, client_of: ClientOf
) -> None:
    turns = [*asked()["messages"], {"role": "system", "content": "Be kind."}]
    message = await create(client_of(says()), system="Be brief.", messages=turns)
    assert message.stop_reason == "end_turn"


async def test_openapi_tells_of_it(says: Says, client_of: ClientOf) -> None:
    document: dict[str, Any] = (await client_of(says()).get("/openapi.json")).json()
    schemas, post = document["components"]["schemas"], document["paths"][MESSAGES]["post"]
    content = post["responses"]["200"]["content"]
    events = {
        ref["$ref"].rpartition("/")[2]
        for ref in content["text/event-stream"]["x-event-data"]["oneOf"]
    }
    assert {"MessageStart", "ContentBlockDelta", "MessageStop"} <= events <= set(schemas)
    assert schemas["MessagesRequest"]["required"] == ["model", "messages", "max_tokens"]
    for status in ("400", "404", "408", "413", "500", "529"):
        ref = post["responses"][status]["content"]["application/json"]["schema"]["$ref"]
        assert ref.endswith("/MessagesErrorBody")
