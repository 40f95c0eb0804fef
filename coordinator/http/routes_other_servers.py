"""Endpoints that tools for vLLM and SGLang ask: the load, the tokenizer, the model, the server."""

from fastapi import APIRouter
from starlette.responses import Response

from coordinator.core.contract import ServiceStatus
from coordinator.http.app_context import AppContext
from coordinator.http.errors import json_response
from coordinator.http.openapi import answers
from coordinator.http.response_schemas import Load, ModelInfo, ServerInfo
from telemetry.version import VERSION


def other_servers_routes(context: AppContext) -> APIRouter:
    router = APIRouter(tags=["service"])
    core, tokenizer, settings = context.core, context.tokenizer, context.settings

    @router.get("/stats", responses=answers(ServiceStatus))
    async def stats() -> Response:
        """The same as /status."""
        return json_response(core.status())

    @router.get("/load", responses=answers(Load))
    async def load() -> Response:
        """The number of requests that wait or run, as vLLM tells it."""
        status = core.status()
        return json_response(Load(server_load=status.queued + status.running))

    @router.get("/tokenizer_info", responses={200: {"content": {"application/json": {}}}})
    async def tokenizer_info() -> Response:
        """The checkpoint's tokenizer_config.json with its chat template, as vLLM tells it."""
        return json_response(tokenizer.config)

    @router.get("/model_info", include_in_schema=False)
    @router.get("/get_model_info", responses=answers(ModelInfo))
    async def model_info() -> Response:
        """The model, as SGLang tells it."""
        root = tokenizer.info.root
        return json_response(
            ModelInfo(
                model_path=root, tokenizer_path=root, has_chat_template=tokenizer.has_template
            )
        )

    @router.get("/get_server_info", include_in_schema=False)
    @router.get("/server_info", responses=answers(ServerInfo))
    async def server_info() -> Response:
        """The server, with SGLang's names of what both have."""
        status = core.status()
        return json_response(
            ServerInfo(
                version=VERSION,
                model_path=tokenizer.info.root,
                served_model_name=settings.served_model_name,
                context_length=context.max_model_len,
                tool_call_parser=tokenizer.dialect.tool_call_parser,
                reasoning_parser=tokenizer.dialect.reasoning_parser,
                status="ready" if status.ready and not status.draining else "not ready",
            )
        )

    return router
