"""The endpoints that tell about the service: models, health, metrics, tokens."""

import asyncio
from importlib.metadata import version

from fastapi import APIRouter, Request
from starlette.responses import Response

from coordinator.http.app_context import AppContext
from coordinator.http.body import Bodies
from coordinator.http.errors import ApiError, json_response
from coordinator.http.openapi import request_body
from coordinator.http.responses import (
    Detokenized,
    Health,
    Model,
    ModelList,
    Ready,
    Status,
    Tokenized,
    Version,
    errors,
)
from coordinator.http.schemas import DetokenizeRequest, TokenizeRequest
from coordinator.http.shared_answer import SharedAnswer
from telemetry.metrics import CONTENT_TYPE

_RETRY_AFTER_S = 2.0
_METRICS_EVERY_S = 1.0  # rendering them takes some 10 ms of the interpreter


def info_routes(context: AppContext, bodies: Bodies) -> APIRouter:
    router = APIRouter(tags=["service"])
    core, tokenizer, settings = context.core, context.tokenizer, context.settings

    rendered = SharedAnswer(
        lambda: asyncio.to_thread(context.metrics.render), every_s=_METRICS_EVERY_S
    )

    def model() -> dict[str, object]:
        return {
            "id": settings.served_model_name,
            "object": "model",
            "created": context.started_at,
            "owned_by": "baton",
            "root": tokenizer.info.root,
            "parent": None,
            "max_model_len": context.max_model_len,
        }

    @router.get("/v1/models", responses={200: {"model": ModelList}})
    async def models() -> Response:
        return json_response({"object": "list", "data": [model()]})

    @router.get("/v1/models/{model_id:path}", responses={200: {"model": Model}, **errors(404)})
    async def one_model(model_id: str) -> Response:
        context.check_model(model_id)
        return json_response(model())

    @router.head("/health", include_in_schema=False)
    @router.get("/health", responses={200: {"model": Health}})
    async def health() -> Response:
        """The process is alive."""
        return json_response({"status": "ok"})

    @router.head("/ready", include_in_schema=False)
    @router.get("/ready", responses={200: {"model": Ready}, **errors(503)})
    async def ready() -> Response:
        """The service can take work; 503 says why not."""
        status = core.status()
        redis = {"redis_connected": status.redis_connected}
        if not status.problems and not status.draining:
            return json_response({"ready": True, "problems": [], **redis})
        problems = list(status.problems) or ["draining"]
        error = ApiError(503, "; ".join(problems), code="not_ready", retry_after_s=_RETRY_AFTER_S)
        answer = {**error.body(), "ready": False, "problems": problems, **redis}
        return json_response(answer, status=503, headers=error.headers)

    @router.get("/status", responses={200: {"model": Status}})
    async def status() -> Response:
        """Queues and workers as they are now."""
        return json_response(core.status())

    @router.get("/metrics", responses={200: {"content": {"text/plain": {}}}})
    async def metrics() -> Response:
        """Prometheus text."""
        return Response(await rendered.get(), media_type=CONTENT_TYPE)

    @router.get("/version", responses={200: {"model": Version}})
    async def get_version() -> Response:
        return json_response({"version": version("baton")})

    @router.post(
        "/tokenize",
        responses={200: {"model": Tokenized}, **errors(400, 404)},
        openapi_extra=request_body(TokenizeRequest),
    )
    async def tokenize(http: Request) -> Response:
        """Token ids of a text or of a conversation."""
        answer = await bodies.lookup(http, "tokenize")
        return Response(answer, media_type="application/json")

    @router.post(
        "/detokenize",
        responses={200: {"model": Detokenized}, **errors(400, 404)},
        openapi_extra=request_body(DetokenizeRequest),
    )
    async def detokenize(http: Request) -> Response:
        """The text of token ids, special tokens included."""
        answer = await bodies.lookup(http, "detokenize")
        return Response(answer, media_type="application/json")

    return router
