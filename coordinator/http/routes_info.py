"""The endpoints about the service: models, health, metrics, tokens."""

import asyncio

from fastapi import APIRouter, Request
from starlette.responses import Response

from coordinator.core.contract import LoadSeries, ServiceStatus
from coordinator.http.app_context import AppContext
from coordinator.http.bodies.bodies import Bodies
from coordinator.http.errors import ApiError, json_response
from coordinator.http.messages.models import (
    anthropic_model,
    anthropic_models,
    asks_for_anthropic,
)
from coordinator.http.openapi import answers, request_body
from coordinator.http.request_schemas import DetokenizeRequest, TokenizeRequest
from coordinator.http.response_schemas import (
    Detokenized,
    Health,
    Model,
    ModelList,
    Ready,
    Tokenized,
    Version,
)
from coordinator.http.shared_answer import SharedAnswer
from telemetry.metrics import CONTENT_TYPE
from telemetry.version import VERSION

_RETRY_AFTER_S = 2.0
_METRICS_EVERY_S = 1.0  # rendering them takes some 10 ms of the interpreter


def info_routes(context: AppContext, bodies: Bodies) -> APIRouter:
    router = APIRouter(tags=["service"])
    core, tokenizer, settings = context.core, context.tokenizer, context.settings

    rendered = SharedAnswer(
        lambda: asyncio.to_thread(context.metrics.render), every_s=_METRICS_EVERY_S
    )

    def model() -> Model:
        return Model(
            id=settings.served_model_name,
            created=context.started_at,
            owned_by="baton",
            root=tokenizer.info.root,
            max_model_len=context.max_model_len,
        )

    # The route below would take this path for a model with an empty name.
    @router.get("/v1/models/", include_in_schema=False)
    @router.get("/v1/models", responses=answers(ModelList))
    async def models(http: Request) -> Response:
        """The model; in Anthropic's form with the header ``anthropic-version``."""
        if asks_for_anthropic(http.headers):
            return json_response(anthropic_models(model()))
        return json_response(ModelList(data=[model()]))

    @router.get("/v1/models/{model_id:path}", responses=answers(Model, 404))
    async def one_model(http: Request, model_id: str) -> Response:
        context.check_model(model_id.removesuffix("/"))
        if asks_for_anthropic(http.headers):
            return json_response(anthropic_model(model()))
        return json_response(model())

    @router.get("/health", responses=answers(Health))
    async def health() -> Response:
        """The process is alive."""
        return json_response(Health())

    @router.get("/ping", include_in_schema=False)
    @router.post("/ping", include_in_schema=False)
    async def ping() -> Response:
        """The same, for load balancers that use this path."""
        return json_response(Health())

    @router.get("/ready", responses=answers(Ready, 503))
    async def ready() -> Response:
        """The service takes work, though with the problems that are named; 503 says why it does
        not."""
        status = core.status()
        problems = list(status.problems)
        if status.ready and not status.draining:
            return json_response(Ready(problems=problems, redis_connected=status.redis_connected))
        problems = problems or ["draining"]
        error = ApiError(503, "; ".join(problems), code="not_ready", retry_after_s=_RETRY_AFTER_S)
        answer = {**error.body(), "ready": False, "problems": problems}
        answer["redis_connected"] = status.redis_connected
        return json_response(answer, status=503, headers=error.headers)

    @router.get("/status", responses=answers(ServiceStatus))
    async def status() -> Response:
        """Queues and workers now."""
        return json_response(core.status())

    @router.get("/status/history", responses=answers(LoadSeries))
    async def load_history() -> Response:
        """Tokens per second, latencies and queue over the last hour."""
        return json_response(core.load_series())

    @router.get("/metrics", responses={200: {"content": {"text/plain": {}}}})
    async def metrics() -> Response:
        """Metrics in Prometheus' text format."""
        return Response(await rendered.get(), media_type=CONTENT_TYPE)

    @router.get("/version", responses=answers(Version))
    async def get_version() -> Response:
        return json_response(Version(version=VERSION))

    @router.post(
        "/tokenize",
        responses=answers(Tokenized, 400, 404),
        openapi_extra=request_body(TokenizeRequest),
    )
    async def tokenize(http: Request) -> Response:
        """Token ids of a text or of a conversation."""
        answer = await bodies.lookup(http, "tokenize")
        return Response(answer, media_type="application/json")

    @router.post(
        "/detokenize",
        responses=answers(Detokenized, 400, 404),
        openapi_extra=request_body(DetokenizeRequest),
    )
    async def detokenize(http: Request) -> Response:
        """The text of token ids, special tokens included."""
        answer = await bodies.lookup(http, "detokenize")
        return Response(answer, media_type="application/json")

    return router
