"""``POST /v1/messages`` and ``POST /v1/messages/count_tokens``, Anthropic's Messages API.

A request is translated to a chat (translation.py), and is then prepared, limited, recorded and
generated as a chat. Only its answer (answer.py) and its errors (error_form.py) have forms of their
own. ``anthropic-version`` and ``anthropic-beta`` are not read: there is one version.
"""

from fastapi import APIRouter, Request
from starlette.responses import Response

from coordinator.http.answer_form import tool_parameters
from coordinator.http.app_context import AppContext, new_id
from coordinator.http.bodies.bodies import Bodies
from coordinator.http.generation import sequence_requests
from coordinator.http.messages.answer import MessagesAnswer
from coordinator.http.messages.bodies import (
    MESSAGES_EVENTS,
    Message,
    MessagesErrorBody,
    TokensCount,
)
from coordinator.http.messages.error_form import OVERLOADED, PATH
from coordinator.http.messages.requests import CountTokensRequest, MessagesRequest
from coordinator.http.messages.translation import client_field_names
from coordinator.http.openapi import answers, request_body
from coordinator.http.request_schemas import ChatRequest
from coordinator.http.respond import respond
from coordinator.http.response_names import noted_name


def messages_routes(context: AppContext, bodies: Bodies) -> APIRouter:
    router = APIRouter(tags=["messages"])

    @router.post(
        PATH,
        responses=answers(
            Message, 400, 404, 503, 504, OVERLOADED, chunk=MESSAGES_EVENTS, error=MessagesErrorBody
        ),
        openapi_extra=request_body(MessagesRequest),
    )
    async def messages(http: Request) -> Response:
        """The assistant's next message; with ``stream`` as server-sent events."""
        prepared = await bodies.generation(http, "messages")
        request, request_id = prepared.request, new_id()
        assert isinstance(request, ChatRequest)
        with client_field_names():
            specs = await sequence_requests(context, http, prepared, request_id)
        thought = context.tokenizer.thought_of(prepared.prompts[0])
        answer = MessagesAnswer(
            f"msg_{context.names.named(request_id, noted_name(http.scope))}",
            context.settings.served_model_name,
            prepared.prompt_tokens,
            context.tokenizer.dialect.answer_parser(thought, tool_parameters(request)),
            includes_thought=request.include_reasoning is not False,
            fills_context=request.max_completion_tokens is not None,
        )
        return await respond(context, http, request, specs, answer)

    @router.post(
        f"{PATH}/count_tokens",
        responses=answers(TokensCount, 400, 404, error=MessagesErrorBody),
        openapi_extra=request_body(CountTokensRequest),
    )
    async def count_tokens(http: Request) -> Response:
        """The number of tokens of the prompt, with its tools and all that the template adds."""
        answer = await bodies.lookup(http, "count_tokens")
        return Response(answer, media_type="application/json")

    return router
