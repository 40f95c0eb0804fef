"""Responses as the official client's types have them: parsed strictly, nothing left over."""

import json
from typing import Any

import httpx
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

_events: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)
BEYOND_THE_TYPES = {"store", "name", "bytes"}
"""What OpenAI's API sends too, though the client's types lack it: ``store`` of a response, ``name``
of finished arguments, ``bytes`` of a token in an event."""


def parsed(data: bytes | str) -> Response:
    """The body of a response; raises for anything that the types do not allow."""
    response = Response.model_validate_json(data, strict=True)
    assert extras(response) <= BEYOND_THE_TYPES
    return response


def parsed_event(data: str) -> Any:
    event = _events.validate_json(data, strict=True)
    assert extras(event) <= BEYOND_THE_TYPES
    return event


def extras(value: Any) -> set[str]:
    """The fields in ``value`` that its types do not have."""
    if isinstance(value, list):
        return set().union(*map(extras, value))
    if not isinstance(value, BaseModel):
        return set()
    own = set(value.model_extra or {})
    return own.union(*(extras(getattr(value, name)) for name in type(value).model_fields))


def parsed_stream(text: str) -> list[Any]:
    """The events of a whole stream, in order and numbered."""
    *blocks, rest = text.split("\n\n")
    assert rest == ""
    events = []
    for number, block in enumerate(blocks):
        name, data = block.split("\n")
        event = parsed_event(data.removeprefix("data: "))
        assert name == f"event: {event.type}"
        assert event.sequence_number == number
        events.append(event)
    return events


async def create(client: httpx.AsyncClient, **body: Any) -> Response:
    answer = await client.post("/v1/responses", json={"input": "Hi", **body})
    assert answer.status_code == 200, answer.text
    return parsed(answer.content)


async def stream(client: httpx.AsyncClient, **body: Any) -> list[Any]:
    answer = await client.post("/v1/responses", json={"input": "Hi", **body, "stream": True})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    return parsed_stream(answer.text)


def shape(item: Any) -> dict[str, Any]:
    """An item without what is random in it."""
    found: dict[str, Any] = json.loads(item.model_dump_json(exclude_none=True))
    return {name: value for name, value in found.items() if name not in ("id", "call_id")}
