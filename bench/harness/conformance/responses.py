"""Checks: OpenAI's /v1/responses."""

import json
from typing import Any, Literal

import msgspec

from bench.harness.conformance.check import ADD_PARAMETERS, SUM, recommended
from bench.harness.conformance.server import (
    Answer,
    NotOffered,
    Server,
    Violation,
    require,
    require_order,
)
from bench.harness.conformance.stream_events import names

RESPONSES = "/v1/responses"
_TOOL = {
    "type": "function",
    "name": "add",
    "description": "Adds two numbers.",
    "parameters": ADD_PARAMETERS,
    "strict": True,
}
_SCHEMA = {
    "type": "object",
    "properties": {"count": {"type": "integer"}},
    "required": ["count"],
    "additionalProperties": False,
}
_FIRST, _LAST = "response.created", "response.completed"
_OF_TEXT = (
    "response.output_item.added", "response.content_part.added", "response.output_text.delta",
    "response.output_text.done", "response.content_part.done", "response.output_item.done",
)  # fmt: skip
_LATER = ("response.completed", "response.incomplete")


class Usage(msgspec.Struct):
    input_tokens: int
    output_tokens: int
    total_tokens: int


class Item(msgspec.Struct):
    type: str
    id: str | None = None
    content: list[dict[str, Any]] | None = None
    name: str | None = None
    arguments: str | None = None
    call_id: str | None = None


class Response(msgspec.Struct):
    id: str
    object: Literal["response"]
    created_at: float
    model: str
    status: str
    output: list[Item]
    usage: Usage | None = None

    @property
    def text(self) -> str:
        parts = [part for item in self.output for part in item.content or ()]
        return "".join(part["text"] for part in parts if part.get("type") == "output_text")


async def _ask(server: Server, **fields: Any) -> Answer:
    body = {"input": SUM, "temperature": 0, "max_output_tokens": 256, **fields}
    return await server.post(RESPONSES, body)


async def _response(server: Server, **fields: Any) -> Response:
    return (await _ask(server, **fields)).ok(optional=True).read(Response)


async def shape(server: Server) -> str:
    found = await _response(server)
    require(found.status == "completed", f"status is {found.status!r}")
    require(found.text, f"no output_text in {found.output}")
    usage = found.usage
    if usage is None:
        raise Violation("no usage")
    adds_up = usage.total_tokens == usage.input_tokens + usage.output_tokens
    require(adds_up, f"usage does not add up: {usage}")
    return f"{usage.input_tokens} + {usage.output_tokens} tokens"


async def cut_off(server: Server) -> None:
    answer = (await _ask(server, max_output_tokens=16, temperature=1)).ok(optional=True)
    found = answer.read(Response)
    if found.status == "completed" and found.usage and found.usage.output_tokens < 16:
        return
    reason = (json.loads(answer.body).get("incomplete_details") or {}).get("reason")
    got = found.status, reason
    require(got == ("incomplete", "max_output_tokens"), f"status and reason are {got}")


async def stream(server: Server) -> str:
    events = (await _ask(server, stream=True)).typed_events()
    order = names(events)
    require(order[0] == _FIRST, f"the first event is {order[0]!r}")
    require(order[-1] in _LATER, f"the last event is {order[-1]!r}")
    require_order(order, _OF_TEXT)
    numbers = [event.data.get("sequence_number") for event in events]
    require(numbers == list(range(numbers[0] or 0, (numbers[0] or 0) + len(numbers))),
            f"sequence_number: {numbers[:20]}")  # fmt: skip
    deltas = [e.data["delta"] for e in events if e.name == "response.output_text.delta"]
    last = msgspec.convert(events[-1].data["response"], Response)
    require("".join(deltas) == last.text, f"{''.join(deltas)!r} is not {last.text!r}")
    return f"{len(deltas)} deltas"


async def tools(server: Server) -> None:
    choice = {"type": "function", "name": "add"}
    found = await _response(server, tools=[_TOOL], tool_choice=choice)
    calls = [item for item in found.output if item.type == "function_call"]
    require(len(calls) == 1, f"the output is {found.output}")
    arguments = json.loads(calls[0].arguments or "")
    require(arguments.keys() == {"a", "b"}, f"the arguments are {arguments}")
    require(calls[0].call_id, f"no call_id in {calls[0]}")
    answer = await _ask(server, tools=[_TOOL], tool_choice=choice, stream=True)
    events = answer.typed_events()
    wanted = ("response.function_call_arguments.delta", "response.function_call_arguments.done")
    missing = [name for name in wanted if name not in names(events)]
    require(not missing, f"no {missing} in {names(events)}")


async def results(server: Server) -> None:
    call = {"type": "function_call", "call_id": "call_1", "name": "add"}
    items = [
        {"role": "user", "content": SUM},
        {**call, "arguments": '{"a": 1, "b": 2}'},
        {"type": "function_call_output", "call_id": "call_1", "output": "3"},
    ]
    found = await _response(server, input=items, tools=[_TOOL], tool_choice="none")
    require(found.text, f"no text after a call's output: {found.output}")


async def form(server: Server) -> None:
    wanted = {"type": "json_schema", "name": "amount", "schema": _SCHEMA, "strict": True}
    found = await _response(server, text={"format": wanted})
    value = json.loads(found.text)
    require(type(value.get("count")) is int, f"not what the schema asks for: {found.text!r}")


async def goes_on(server: Server) -> None:
    first = await _response(server, store=True)
    answer = await _ask(server, input="And then?", previous_response_id=first.id)
    if answer.status in (400, 404):
        raise NotOffered(str(answer))
    second = answer.ok().read(Response)
    assert first.usage is not None, "shape() checks it"
    assert second.usage is not None, "shape() checks it"
    longer = second.usage.input_tokens > first.usage.input_tokens
    require(longer, "the second turn's input is not longer than the first one's")


async def errors(server: Server) -> None:
    await _response(server)
    for fields in ({"temperature": -1}, {"input": 5}, {"previous_response_id": "resp_absent"}):
        answer = await _ask(server, **fields)
        wanted = (400, 404) if "previous_response_id" in fields else (400,)
        require(answer.status in wanted, f"{fields}: expected {wanted}, got {answer}")
        require("error" in json.loads(answer.body), f"no error object: {answer}")


CHECKS = (
    recommended("a response has its shape", shape),
    recommended("max_output_tokens ends as incomplete", cut_off),
    recommended("the events of a streamed response", stream),
    recommended("a response calls a function", tools),
    recommended("the output of a call goes back", results),
    recommended("text.format json_schema", form),
    recommended("previous_response_id goes on", goes_on),
    recommended("errors of /v1/responses have their shape", errors),
)
