"""The two endpoints that generate."""

from collections.abc import Sequence

from fastapi import APIRouter, Request
from starlette.responses import Response

from coordinator import body
from coordinator.chat import ChatWriter
from coordinator.completions import CompletionWriter
from coordinator.connection import while_connected
from coordinator.edge import Edge, new_id
from coordinator.generate import check, generations, respond
from coordinator.openapi import request_body, streamed
from coordinator.prompts import chat_prompt, completion_prompt
from coordinator.responses import ChatCompletion, ChatCompletionChunk, Completion, errors
from coordinator.schemas import ChatRequest, CompletionRequest, Prompt
from transport.token_ids import TokenIds


def generate_routes(edge: Edge) -> APIRouter:
    router = APIRouter(tags=["generation"])
    tokenizer, settings = edge.tokenizer, edge.settings

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
        request = await body.read(edge, ChatRequest, http)
        check(edge, request)
        prompt = await while_connected(
            chat_prompt(
                tokenizer,
                request.messages,
                add_generation_prompt=request.add_generation_prompt,
                variables=request.chat_template_kwargs,
                max_len=edge.max_model_len,
            ),
            http.receive,
        )
        request.messages.clear()  # the ids are held from here on, and no text beside them
        generation_id = new_id()
        logprobs = (request.top_logprobs or 0) if request.logprobs else None
        accepted = generations(
            edge, request, generation_id, [prompt], prompt_param="messages", logprobs=logprobs
        )
        writer = ChatWriter(
            f"chatcmpl-{generation_id}",
            settings.served_model_name,
            tokenizer.token_bytes,
            logprobs=logprobs is not None,
            prompt_ids=prompt if request.return_token_ids else None,
        )
        return await respond(edge, http, request, accepted, writer, role_first=True)

    @router.post(
        "/v1/completions",
        responses={200: streamed(Completion, Completion), **errors(400, 404, 503, 504)},
        openapi_extra=request_body(CompletionRequest),
    )
    async def completions(http: Request) -> Response:
        """Text that continues each prompt; with ``stream`` as server-sent events."""
        request = await body.read(edge, CompletionRequest, http)
        check(edge, request, len(request.prompt))
        prompts, echoes = await while_connected(prompts_and_echoes(request), http.receive)
        request.prompt = ()  # the ids are held from here on, and no text beside them
        generation_id = new_id()
        accepted = generations(
            edge, request, generation_id, prompts, prompt_param="prompt", logprobs=request.logprobs
        )
        writer = CompletionWriter(
            f"cmpl-{generation_id}",
            settings.served_model_name,
            tokenizer.token_bytes,
            n=request.n or 1,
            logprobs=request.logprobs is not None,
            echoes=echoes,
            prompt_ids=prompts if request.return_token_ids else None,
        )
        return await respond(edge, http, request, accepted, writer, role_first=False)

    async def prompts_and_echoes(
        request: CompletionRequest,
    ) -> tuple[list[TokenIds], list[str] | None]:
        prompts = [
            await completion_prompt(
                tokenizer,
                prompt,
                add_special_tokens=request.add_special_tokens,
                max_len=edge.max_model_len,
            )
            for prompt in request.prompt
        ]
        return prompts, await echoes(request.prompt) if request.echo else None

    async def echoes(prompts: Sequence[Prompt]) -> list[str]:
        return [
            prompt if isinstance(prompt, str) else await tokenizer.run(tokenizer.decode, prompt)
            for prompt in prompts
        ]

    return router
