"""Checks: Anthropic's /v1/messages."""

import json
from typing import Any, Literal

import msgspec

from bench.harness.conformance.check import ADD_PARAMETERS, ANTHROPIC, SUM, recommended
from bench.harness.conformance.server import Answer, Server, require, require_order
from bench.harness.conformance.stream_events import names

MESSAGES = "/v1/messages"
_HEADERS = {"anthropic-version": "2023-06-01"}
_TOOL = {"name": "add", "description": "Adds two numbers.", "input_schema": ADD_PARAMETERS}
_USER = {"role": "user", "content": SUM}
_OF_TEXT = (
    "message_start", "content_block_start", "content_block_delta", "content_block_stop",
    "message_delta", "message_stop",
)  # fmt: skip


class Usage(msgspec.Struct):
    input_tokens: int
    output_tokens: int


class Block(msgspec.Struct):
    type: str
    text: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None


class Message(msgspec.Struct):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[Block]
    stop_reason: str | None
    usage: Usage

    @property
    def text(self) -> str:
        return "".join(block.text or "" for block in self.content if block.type == "text")


class Counted(msgspec.Struct):
    input_tokens: int


async def _ask(server: Server, **fields: Any) -> Answer:
    body = {"messages": [_USER], "max_tokens": 256, "temperature": 0, **fields}
    return await server.post(MESSAGES, body, _HEADERS)


async def _message(server: Server, **fields: Any) -> Message:
    return (await _ask(server, **fields)).ok(optional=True).read(Message)


async def shape(server: Server) -> str:
    found = await _message(server, system="Answer in one sentence.")
    require(found.text, f"no text in {found.content}")
    reason = found.stop_reason
    require(reason in ("end_turn", "max_tokens"), f"stop_reason is {reason!r}")
    return f"{found.usage.input_tokens} + {found.usage.output_tokens} tokens"


async def cut_off(server: Server) -> None:
    found = await _message(server, max_tokens=3)
    require(found.stop_reason == "max_tokens", f"stop_reason is {found.stop_reason!r}")
    require(found.usage.output_tokens == 3, f"{found.usage.output_tokens} tokens, not 3")


async def stop(server: Server) -> str:
    before = (await _message(server)).text
    cut = before[len(before) // 2 : len(before) // 2 + 4]
    found = await _message(server, stop_sequences=[cut])
    require(found.text == before.split(cut)[0], f"{found.text!r} is not {before!r} up to {cut!r}")
    require(found.stop_reason == "stop_sequence", f"stop_reason is {found.stop_reason!r}")
    return f"stop {cut!r}"


async def stream(server: Server) -> str:
    events = (await _ask(server, stream=True)).typed_events()
    order = [name for name in names(events) if name != "ping"]
    require_order(order, _OF_TEXT)
    require(order[-1] == "message_stop", f"the last event is {order[-1]!r}")
    deltas = [e.data["delta"] for e in events if e.name == "content_block_delta"]
    text = "".join(delta.get("text", "") for delta in deltas if delta["type"] == "text_delta")
    whole = (await _message(server)).text
    require(text, "the stream has no text")
    return f"{len(deltas)} deltas" if text == whole else "the text differs from the whole answer's"


async def tools(server: Server) -> None:
    fields: dict[str, Any] = {"tools": [_TOOL], "tool_choice": {"type": "tool", "name": "add"}}
    found = await _message(server, **fields)
    calls = [block for block in found.content if block.type == "tool_use"]
    require(len(calls) == 1, f"the content is {found.content}")
    require((calls[0].input or {}).keys() == {"a", "b"}, f"the input is {calls[0].input}")
    require(found.stop_reason == "tool_use", f"stop_reason is {found.stop_reason!r}")
    events = (await _ask(server, stream=True, **fields)).typed_events()
    pieces = [
        event.data["delta"]["partial_json"]
        for event in events
        if event.data.get("delta", {}).get("type") == "input_json_delta"
    ]
    streamed = json.loads("".join(pieces))
    require(streamed.keys() == {"a", "b"}, f"the streamed input is {streamed}")


async def results(server: Server) -> None:
    call = {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"a": 1, "b": 2}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "3"}
    turns = [
        _USER,
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ]
    found = await _message(server, messages=turns, tools=[_TOOL], tool_choice={"type": "none"})
    require(found.text, f"no text after a tool's result: {found.content}")


async def count(server: Server) -> str:
    body = {"messages": [_USER]}
    answer = await server.post(f"{MESSAGES}/count_tokens", body, _HEADERS)
    counted = answer.ok(optional=True).read(Counted).input_tokens
    used = (await _message(server, max_tokens=1)).usage.input_tokens
    require(counted == used, f"{counted} counted, {used} used")
    return f"{counted} tokens"


async def errors(server: Server) -> None:
    await _message(server, max_tokens=1)
    body = {"messages": [_USER]}  # max_tokens is required
    for answer in (await server.post(MESSAGES, body, _HEADERS), await _ask(server, messages=[])):
        require(answer.status == 400, f"expected HTTP 400, got {answer}")
        found = json.loads(answer.body)
        kind = found.get("error", {}).get("type")
        got = found.get("type"), kind
        require(got == ("error", "invalid_request_error"), f"the types are {got}")


CHECKS = (
    recommended("a message has its shape", shape, source=ANTHROPIC),
    recommended("max_tokens of a message, to the token", cut_off, source=ANTHROPIC),
    recommended("a stop sequence ends the text before it", stop, source=ANTHROPIC),
    recommended("the events of a streamed message", stream, source=ANTHROPIC),
    recommended("a message uses a tool", tools, source=ANTHROPIC),
    recommended("the result of a tool goes back", results, source=ANTHROPIC),
    recommended("count_tokens counts what is used", count, source=ANTHROPIC),
    recommended("errors of /v1/messages have their shape", errors, source=ANTHROPIC),
)
