"""The two endpoints that generate."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from coordinator.http.app_context import AppContext, new_id
from coordinator.http.body import Bodies
from coordinator.http.generate import respond, sequence_requests
from coordinator.http.openapi import answers, request_body
from coordinator.http.request_schemas import ChatRequest, CompletionRequest
from coordinator.http.response_schemas import ChatCompletion, ChatCompletionChunk, Completion
from coordinator.http.writers import ChatWriter, CompletionWriter


def generate_routes(context: AppContext, bodies: Bodies) -> APIRouter:
    router = APIRouter(tags=["generation"])
    tokenizer, settings = context.tokenizer, context.settings

    @router.post(
        "/v1/chat/completions",
        responses=answers(ChatCompletion, 400, 404, 503, 504, chunk=ChatCompletionChunk),
        openapi_extra=request_body(ChatRequest),
    )
    async def chat_completions(http: Request) -> Response:
        """The assistant's next message; with ``stream`` as server-sent events."""
        prepared = await bodies.generation(http, "chat")
        request, (prompt,) = prepared.request, prepared.prompts
        assert isinstance(request, ChatRequest)
        response_id = new_id()
        logprobs = (request.top_logprobs or 0) if request.logprobs else None
        specs = sequence_requests(
            context, request, response_id, [prompt], prompt_param="messages", logprobs=logprobs
        )
        writer = ChatWriter(
            f"chatcmpl-{response_id}",
            settings.served_model_name,
            tokenizer.token_bytes,
            logprobs=logprobs is not None,
            prompt_ids=prompt if request.return_token_ids else None,
        )
        return await respond(context, http, request, specs, writer, role_first=True)

    @router.post(
        "/v1/completions",
        responses=answers(Completion, 400, 404, 503, 504, chunk=Completion),
        openapi_extra=request_body(CompletionRequest),
    )
    async def completions(http: Request) -> Response:
        """Text that continues each prompt; with ``stream`` as server-sent events."""
        prepared = await bodies.generation(http, "completion")
        request, prompts = prepared.request, prepared.prompts
        assert isinstance(request, CompletionRequest)
        response_id = new_id()
        specs = sequence_requests(
            context,
            request,
            response_id,
            prompts,
            prompt_param="prompt",
            logprobs=request.logprobs,
        )
        writer = CompletionWriter(
            f"cmpl-{response_id}",
            settings.served_model_name,
            tokenizer.token_bytes,
            n=request.n or 1,
            logprobs=request.logprobs is not None,
            echoes=prepared.echoes,
            prompt_ids=prompts if request.return_token_ids else None,
        )
        return await respond(context, http, request, specs, writer, role_first=False)

    return router
