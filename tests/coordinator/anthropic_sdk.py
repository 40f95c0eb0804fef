"""Bodies and events of the Messages API, read by the types of Anthropic's SDK and nothing else."""

import json
from functools import cache
from typing import Any

import httpx
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import Message, RawMessageStreamEvent
from anthropic.types.shared import ErrorResponse
from pydantic import BaseModel, TypeAdapter

MESSAGES = "/v1/messages"
HEADERS = {"anthropic-version": "2023-06-01"}


# To make an adapter takes far longer than to read with it.
_adapter = cache(TypeAdapter)


def strictly(kind: Any, data: bytes | str) -> Any:
    """``data`` as ``kind``: every field there and of its type, and no field that it lacks."""
    found = _adapter(kind).validate_json(data, strict=True)
    _check_no_more(found)
    return found


def _check_no_more(value: Any) -> None:
    if isinstance(value, BaseModel):
        assert not value.model_extra, f"{type(value).__name__} has no {value.model_extra}"
        for name in type(value).model_fields:
            _check_no_more(getattr(value, name))
    elif isinstance(value, list):
        for each in value:
            _check_no_more(each)


def events_of(text: str) -> list[Any]:
    """The events of a stream but its pings, each with its name."""
    found = []
    *blocks, rest = text.split("\n\n")
    assert rest == ""
    for block in blocks:
        name, data = block.split("\n")
        assert data.startswith('data: {"type":"' + name.removeprefix("event: ") + '"'), block
        if name == "event: error":
            found.append(error_of(data.removeprefix("data: ")))
        elif name != "event: ping":
            found.append(strictly(RawMessageStreamEvent, data.removeprefix("data: ")))
    return found


def error_of(data: bytes | str) -> Any:
    """The SDK reads ``details``, though its types do not list them."""
    body = json.loads(data)
    details = body["error"].pop("details")
    assert set(details) == {"error_code"}
    return strictly(ErrorResponse, json.dumps(body))


def message_of(events: list[Any]) -> Any:
    """What the SDK makes of a stream."""
    snapshot, buffers = None, {}
    for event in events:
        snapshot = accumulate_event(event=event, current_snapshot=snapshot, json_bufs=buffers)
    return snapshot


async def create(client: httpx.AsyncClient, **body: Any) -> Message:
    response = await client.post(MESSAGES, json=asked(**body), headers=HEADERS)
    assert response.status_code == 200, response.text
    return strictly(Message, response.content)


async def stream(client: httpx.AsyncClient, **body: Any) -> list[Any]:
    response = await client.post(MESSAGES, json=asked(**body, stream=True), headers=HEADERS)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    return events_of(response.text)


def asked(**body: Any) -> dict[str, Any]:
    hello = [{"role": "user", "content": "Hi"}]
    return {"model": "tiny", "max_tokens": 400, "messages": hello} | body


def check_error(response: httpx.Response, status: int, kind: str) -> str:
    """The message of an error."""
    assert response.status_code == status, response.text
    error = error_of(response.content)
    assert error.error.type == kind
    assert error.request_id == response.headers["request-id"] == response.headers["x-request-id"]
    message: str = error.error.message
    return message
