"""The two endpoints that generate."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from coordinator.http.app_context import AppContext, new_id
from coordinator.http.body import Bodies
from coordinator.http.chat import ChatWriter
from coordinator.http.completions import CompletionWriter
from coordinator.http.generate import generations, respond
from coordinator.http.openapi import request_body, streamed
from coordinator.http.responses import ChatCompletion, ChatCompletionChunk, Completion, errors
from coordinator.http.schemas import ChatRequest, CompletionRequest


def generate_routes(context: AppContext, bodies: Bodies) -> APIRouter:
    router = APIRouter(tags=["generation"])
    tokenizer, settings = context.tokenizer, context.settings

    @router.post(
        "/v1/chat/completions",
        responses={
            200: streamed(ChatCompletion, ChatCompletionChunk),
            **errors(400, 404, 503, 504),
        },
        openapi_extra=request_body(ChatRequest),
    )
    async def chat_completions(http: Request) -> Response:
        """The assistant's next message; with ``stream`` as server-sent events."""
        prepared = await bodies.generation(http, "chat")
        request, (prompt,) = prepared.request, prepared.prompts
        assert isinstance(request, ChatRequest)
        generation_id = new_id()
        logprobs = (request.top_logprobs or 0) if request.logprobs else None
        accepted = generations(
            context, request, generation_id, [prompt], prompt_param="messages", logprobs=logprobs
        )
        writer = ChatWriter(
            f"chatcmpl-{generation_id}",
            settings.served_model_name,
            tokenizer.token_bytes,
            logprobs=logprobs is not None,
            prompt_ids=prompt if request.return_token_ids else None,
        )
        return await respond(context, http, request, accepted, writer, role_first=True)

    @router.post(
        "/v1/completions",
        responses={200: streamed(Completion, Completion), **errors(400, 404, 503, 504)},
        openapi_extra=request_body(CompletionRequest),
    )
    async def completions(http: Request) -> Response:
        """Text that continues each prompt; with ``stream`` as server-sent events."""
        prepared = await bodies.generation(http, "completion")
        request, prompts = prepared.request, prepared.prompts
        assert isinstance(request, CompletionRequest)
        generation_id = new_id()
        accepted = generations(
            context,
            request,
            generation_id,
            prompts,
            prompt_param="prompt",
            logprobs=request.logprobs,
        )
        writer = CompletionWriter(
            f"cmpl-{generation_id}",
            settings.served_model_name,
            tokenizer.token_bytes,
            n=request.n or 1,
            logprobs=request.logprobs is not None,
            echoes=prepared.echoes,
            prompt_ids=prompts if request.return_token_ids else None,
        )
        return await respond(context, http, request, accepted, writer, role_first=False)

    return router
