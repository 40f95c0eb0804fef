"""The document ``/openapi.json``: FastAPI's paths, with the bodies that msgspec reads and
writes."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.requests import Request
from starlette.responses import Response

from coordinator.core.contract import LoadSeries, PoolChange, ServiceStatus
from coordinator.http.auth.key_check import OPEN_PATHS
from coordinator.http.messages.bodies import (
    MESSAGES_EVENTS,
    Message,
    MessagesErrorBody,
    TokensCount,
)
from coordinator.http.messages.error_form import is_messages
from coordinator.http.messages.models import AnthropicModel, AnthropicModelList
from coordinator.http.messages.requests import CountTokensRequest, MessagesRequest
from coordinator.http.request_fields import published
from coordinator.http.request_schemas import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    PoolsRequest,
    TokenizeRequest,
)
from coordinator.http.response_schemas import (
    ChatCompletion,
    ChatCompletionChunk,
    Completion,
    Detokenized,
    ErrorBody,
    Health,
    InputTokens,
    Load,
    ModelInfo,
    ModelList,
    Ready,
    ServerInfo,
    Tokenized,
    Version,
)
from coordinator.http.responses.events import EVENTS
from coordinator.http.responses.input_items import InputItems
from coordinator.http.responses.request import ResponseRequest
from coordinator.http.responses.schemas import DeletedResponse, ResponseBody
from coordinator.http.timeline import RequestList

_REQUESTS = (
    ChatRequest, CompletionRequest, ResponseRequest, MessagesRequest, CountTokensRequest,
    TokenizeRequest, DetokenizeRequest, PoolsRequest,
)  # fmt: skip
_ANSWERS = (
    ChatCompletion, ChatCompletionChunk, Completion, Detokenized, ErrorBody, Health, ModelList,
    Ready, RequestList, ResponseBody, DeletedResponse, *EVENTS, ServiceStatus, LoadSeries,
    PoolChange, Tokenized, Version,
    Message, *MESSAGES_EVENTS, MessagesErrorBody, TokensCount, AnthropicModel,
    AnthropicModelList, InputItems, InputTokens, Load, ModelInfo, ServerInfo,
)  # fmt: skip
_REF = "#/components/schemas/{name}"
_DESCRIPTIONS = {
    400: "A field is wrong or not supported, or the context is too long.",
    403: "The API key has no right to do this.",
    404: "No such model.",
    409: "Something else was asked for meanwhile.",
    503: "Not now: queue full, draining, or no worker. Retry-After says when.",
    529: "Overloaded: the queue is full, or no worker is there. Retry-After says when.",
    504: "Not done within the time that a request may take.",
}
_OF_EVERY_BODY = {
    408: "The body took too long to arrive.",
    413: "The body is too large.",
    415: "The body is not declared as JSON, or is compressed.",
    500: "The generation failed, or the server has a bug.",
}
_OF_EVERY_KEY = {
    401: "The API key is missing or wrong.",
    429: "The key has used up its quota. Retry-After says when to try again.",
}
Responses = dict[int | str, dict[str, Any]]


def request_body(model: type) -> dict[str, Any]:
    """``openapi_extra`` of a route that reads its body as ``model``."""
    return {"requestBody": {"required": True, "content": _json(model)}}


def answers(
    model: type,
    *statuses: int,
    chunk: type | Sequence[type] = (),
    descriptions: Mapping[int, str] = {},
    error: type = ErrorBody,
) -> Responses:
    """``responses`` of a route.

    ``model``: the body of its answer. ``chunk``: the data of an event if it streams, one of several
    if it is a list. ``statuses``: its errors, with a body of type ``error``; 413 and 408 are added
    for every route with a body.
    """
    content = _json(model)
    if chunk:
        data = _ref(chunk) if isinstance(chunk, type) else {"oneOf": [_ref(one) for one in chunk]}
        content["text/event-stream"] = {"schema": {"type": "string"}, "x-event-data": data}
    errors = _errors({s: descriptions.get(s) or _DESCRIPTIONS[s] for s in statuses}, error)
    return {200: {"content": content}, **errors}


def install_openapi(app: FastAPI, *, keys: bool, root_path: str = "") -> None:
    """Complete the app's document. With ``keys`` all but the open paths need a key. The paths are
    below ``root_path``."""

    def build() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = _completed(app)
            if root_path:
                document["servers"] = [{"url": root_path}]
            app.openapi_schema = _locked(document) if keys else document
        return app.openapi_schema

    app.openapi = build  # type: ignore[method-assign]
    built: asyncio.Task[bytes] | None = None

    async def serve(_: Request) -> Response:
        """Serve the document. NOTE: building it takes 0.1 s, so it is done once, in a thread."""
        nonlocal built
        if built is None:
            built = asyncio.create_task(asyncio.to_thread(lambda: msgspec.json.encode(build())))
        return Response(await asyncio.shield(built), media_type="application/json")

    app.add_route("/openapi.json", serve, include_in_schema=False)


def _completed(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(title=app.title, version=app.version, routes=app.routes)
    _, requests = msgspec.json.schema_components(_REQUESTS, ref_template=_REF)
    _, sent = msgspec.json.schema_components(_ANSWERS, ref_template=_REF)
    # Remove FastAPI's schemas of 422, which no route answers with. A struct that requests have too
    # is returned as it was sent, without fields that have their defaults.
    schemas = {n: _as_sent(s) for n, s in sent.items()} | requests
    document["components"] = {"schemas": _plain(schemas)}
    for path, operations in document["paths"].items():
        for operation in operations.values():
            operation["responses"].pop("422", None)
            if "requestBody" in operation:
                _add(path, operation, _OF_EVERY_BODY)
    return document


def _plain(schema: Any) -> Any:
    """The schema with patterns that every regex engine reads."""
    if isinstance(schema, list):
        return [_plain(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: _plain(value) for name, value in schema.items()}
    if isinstance(pattern := found.get("pattern"), str):
        found["pattern"] = published(pattern)
    return found


def _as_sent(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a body that the server sends: fields with a default are always sent."""
    fields = schema["properties"]
    required = [n for n, field in fields.items() if n in schema["required"] or "default" in field]
    unset = {n: {k: v for k, v in field.items() if k != "default"} for n, field in fields.items()}
    return {**schema, "properties": unset, "required": required}


def _locked(document: dict[str, Any]) -> dict[str, Any]:
    document["components"]["securitySchemes"] = {
        "key": {"type": "http", "scheme": "bearer"},
        "x_api_key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    }
    for path, operations in document["paths"].items():
        if path in OPEN_PATHS:
            continue
        for operation in operations.values():
            operation["security"] = [{"key": []}, {"x_api_key": []}]
            _add(path, operation, _OF_EVERY_KEY)
    return document


def _add(path: str, operation: dict[str, Any], descriptions: Mapping[int, str]) -> None:
    errors = _errors(descriptions, MessagesErrorBody if is_messages(path) else ErrorBody)
    operation["responses"] |= {str(status): entry for status, entry in errors.items()}


def _errors(descriptions: Mapping[int, str], error: type) -> Responses:
    return {
        status: {"description": description, "content": _json(error)}
        for status, description in descriptions.items()
    }


def _json(model: type) -> dict[str, Any]:
    return {"application/json": {"schema": _ref(model)}}


def _ref(model: type) -> dict[str, str]:
    return {"$ref": _REF.format(name=model.__name__)}
