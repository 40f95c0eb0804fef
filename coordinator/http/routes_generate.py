"""The endpoints for chats and completions."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from coordinator.http.answer import ChunkedAnswer, CompletionWriter, Head
from coordinator.http.app_context import AppContext, new_id
from coordinator.http.bodies.bodies import Bodies
from coordinator.http.chat_writer import ChatWriter
from coordinator.http.openapi import answers, request_body
from coordinator.http.preparation import Prepared
from coordinator.http.request_schemas import ChatRequest, CompletionRequest
from coordinator.http.respond import respond
from coordinator.http.response_names import noted_name
from coordinator.http.response_schemas import ChatCompletion, ChatCompletionChunk, Completion
from coordinator.http.sequence_requests import sequence_requests


def generate_routes(context: AppContext, bodies: Bodies) -> APIRouter:
    router = APIRouter(tags=["generation"])

    def head(http: Request, prepared: Prepared, prefix: str, request_id: str) -> Head:
        request, model = prepared.request, context.settings.served_model_name
        name = context.names.named(request_id, noted_name(http.scope) or request.request_id)
        return Head(
            f"{prefix}-{name}",
            model,
            logprobs=request.num_logprobs is not None,
            prompt_ids=prepared.prompts if request.return_token_ids else None,
            fingerprint=context.fingerprint,
        )

    @router.post(
        "/v1/chat/completions",
        responses=answers(ChatCompletion, 400, 404, 503, 504, chunk=ChatCompletionChunk),
        openapi_extra=request_body(ChatRequest),
    )
    async def chat_completions(http: Request) -> Response:
        """The assistant's next message; with ``stream`` as server-sent events."""
        return await chat(http, await bodies.generation(http, "chat"))

    async def chat(http: Request, prepared: Prepared) -> Response:
        request, request_id = prepared.request, new_id()
        assert isinstance(request, ChatRequest)
        specs = await sequence_requests(context, http, prepared, request_id)
        thinks = context.tokenizer.opens_thought(prepared.prompts[0])
        writer = ChatWriter(head(http, prepared, "chatcmpl", request_id), request, thinks=thinks)
        thought_end = context.tokenizer.thought_end if thinks else None
        answer = ChunkedAnswer(writer, request, prepared.prompt_tokens, thought_end)
        return await respond(context, http, request, specs, answer)

    @router.post(
        "/v1/completions",
        responses=answers(Completion, 400, 404, 503, 504, chunk=Completion),
        openapi_extra=request_body(CompletionRequest),
    )
    async def completions(http: Request) -> Response:
        """Text that continues each prompt; with ``stream`` as server-sent events."""
        return await completion(http, await bodies.generation(http, "completion"))

    @router.post("/invocations", include_in_schema=False)
    async def invocations(http: Request) -> Response:
        """A chat or a completion, by its body, on the path that SageMaker uses."""
        prepared = await bodies.generation(http, "invocation")
        answer = chat if prepared.kind == "chat" else completion
        return await answer(http, prepared)

    async def completion(http: Request, prepared: Prepared) -> Response:
        request, request_id = prepared.request, new_id()
        specs = await sequence_requests(context, http, prepared, request_id)
        n, echoes = request.n or 1, prepared.echoes
        writer = CompletionWriter(head(http, prepared, "cmpl", request_id), n=n, echoes=echoes)
        answer = ChunkedAnswer(writer, request, prepared.prompt_tokens)
        return await respond(context, http, request, specs, answer)

    return router
