"""A truthful ``/openapi.json``: FastAPI's, plus the bodies that the routes parse themselves."""

import asyncio
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import Response

from coordinator.http.key_check import OPEN_PATHS
from coordinator.http.responses import ErrorBody
from coordinator.http.schemas import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)

_BODIES = (ChatRequest, CompletionRequest, TokenizeRequest, DetokenizeRequest)
_REF = "#/components/schemas/{model}"
_ERROR = {"application/json": {"schema": {"$ref": _REF.format(model=ErrorBody.__name__)}}}
_OF_EVERY_BODY = {
    "408": "The body took too long to arrive.",
    "413": "The body is too large.",
    "500": "The generation failed, or the server has a bug.",
}
_OF_EVERY_KEY = {
    "401": "The API key is missing or wrong.",
    "429": "The key has used up its quota. Retry-After says when to try again.",
}


def request_body(model: type[BaseModel]) -> dict[str, Any]:
    """``openapi_extra`` of a route that reads its body as ``model``."""
    schema = {"$ref": _REF.format(model=model.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def streamed(whole: type[BaseModel], chunk: type[BaseModel]) -> dict[str, Any]:
    """The 200 of a route that answers whole, or as events with a chunk each."""
    events = {
        "schema": {"type": "string"},
        "x-event-data": {"$ref": _REF.format(model=chunk.__name__)},
    }
    return {"model": whole, "content": {"text/event-stream": events}}


def install_openapi(app: FastAPI, *chunks: type[BaseModel], keys: bool) -> None:
    """Complete the app's schema; ``chunks`` are the events' data, which no body refers to; with
    ``keys`` all but the open paths need one."""

    def build() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = _completed(app, chunks)
            app.openapi_schema = _locked(schema) if keys else schema
        return app.openapi_schema

    app.openapi = build  # type: ignore[method-assign]
    built: asyncio.Task[bytes] | None = None

    async def serve(_: Request) -> Response:
        """NOTE: building the schema takes a tenth of a second, so it is done once, in a thread."""
        nonlocal built
        if built is None:
            built = asyncio.create_task(asyncio.to_thread(lambda: msgspec.json.encode(build())))
        return Response(await asyncio.shield(built), media_type="application/json")

    app.add_route("/openapi.json", serve, include_in_schema=False)


def _completed(app: FastAPI, chunks: tuple[type[BaseModel], ...]) -> dict[str, Any]:
    schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
    components = schema.setdefault("components", {}).setdefault("schemas", {})
    models = [*((m, "validation") for m in _BODIES), *((m, "serialization") for m in chunks)]
    _, more = models_json_schema(models, ref_template=_REF)  # type: ignore[arg-type]
    components |= more["$defs"]
    for unused in ("HTTPValidationError", "ValidationError"):  # we never answer 422
        components.pop(unused, None)
    for path in schema["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)
            if "requestBody" in operation:
                for status, description in _OF_EVERY_BODY.items():
                    entry = {"description": description, "content": _ERROR}
                    operation["responses"].setdefault(status, entry)
    return schema


def _locked(schema: dict[str, Any]) -> dict[str, Any]:
    bearer = {"type": "http", "scheme": "bearer"}
    schema["components"]["securitySchemes"] = {"key": bearer}
    for path, operations in schema["paths"].items():
        if path in OPEN_PATHS:
            continue
        for operation in operations.values():
            operation["security"] = [{"key": []}]
            for status, description in _OF_EVERY_KEY.items():
                operation["responses"][status] = {"description": description, "content": _ERROR}
    return schema
