"""The endpoints of OpenAI's Responses API."""

from functools import partial
from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from coordinator.core.contract import StoredResponses
from coordinator.http.answer_form import tool_parameters
from coordinator.http.app_context import AppContext, new_id
from coordinator.http.auth.accounts import account_of
from coordinator.http.bodies.bodies import Bodies
from coordinator.http.choice import collected
from coordinator.http.errors import ApiError, invalid, json_response, quote
from coordinator.http.generation import sequence_requests
from coordinator.http.openapi import answers, request_body
from coordinator.http.request_fields import UNSUPPORTED
from coordinator.http.respond import cancel_all, finished, respond, submitted
from coordinator.http.response_names import noted_name
from coordinator.http.response_schemas import InputTokens
from coordinator.http.responses.answer import ResponseAnswer
from coordinator.http.responses.background import BackgroundResponses
from coordinator.http.responses.earlier import earlier, unavailable
from coordinator.http.responses.events import EVENTS
from coordinator.http.responses.functions import FunctionNames, ignored_tools
from coordinator.http.responses.input_items import InputItems, Order, input_items
from coordinator.http.responses.item_ids import is_response_id, response_id
from coordinator.http.responses.output import Output
from coordinator.http.responses.request import ResponseRequest
from coordinator.http.responses.schemas import DeletedResponse, ResponseBody, body_of
from coordinator.http.responses.translation import client_field_names
from coordinator.http.responses.turn import Turn
from coordinator.http.warning_header import warn
from coordinator.record.stored_response import ConversationUnavailable, StoredResponse
from transport.wire.errors import BatonError

_ERRORS = {
    400: "Streaming a stored response is not supported.",
    404: "No such response: never stored, deleted, expired, or made with another API key.",
    503: "Redis, which keeps responses, does not answer. Retry-After says when to ask again.",
}
_turn = msgspec.json.Decoder(Turn)


class _Background(msgspec.Struct):
    """The one field of a stored body that cancelling asks for."""

    background: bool = False


def response_routes(context: AppContext, bodies: Bodies, stored: StoredResponses) -> APIRouter:
    router = APIRouter(tags=["responses"])
    background = BackgroundResponses()

    @router.post(
        "/v1/responses",
        responses=answers(ResponseBody, 400, 404, 503, 504, chunk=EVENTS),
        openapi_extra=request_body(ResponseRequest),
    )
    async def create_response(http: Request) -> Response:
        """The model's response to an input; with ``stream`` as server-sent events."""
        owner = account_of(http.scope).name
        with client_field_names():
            prepared = await bodies.generation(http, "response", partial(earlier, stored, owner))
            turn, request_id = _turn.decode(prepared.origin), new_id()
            for warning in ignored_tools(turn.request.tools):
                warn(http.scope, warning)
            specs = await sequence_requests(context, http, prepared, request_id)
            thought = context.tokenizer.thought_of(prepared.prompts[0])
            tools = tool_parameters(prepared.request)
            body = body_of(
                turn.request,
                specs[0].sampling,
                response_id(request_id),
                context.settings.served_model_name,
            )
            # The response keeps its own id: it is stored under that.
            context.names.named(request_id, noted_name(http.scope))
            answer = ResponseAnswer(
                body,
                Output(
                    body.id,
                    context.tokenizer.dialect.answer_parser(thought, tools),
                    FunctionNames(turn.request.tools),
                    summarizes=turn.request.summarizes,
                ),
                prepared.prompt_tokens,
                thought,
                partial(_store, stored, owner, turn),
            )
            if not body.background:
                return await respond(context, http, prepared.request, specs, answer)
            choices = submitted(context, http, prepared.request, specs)
            background.start(
                owner,
                body,
                bytes(turn.items),
                lambda: finished(context, choices, [request_id], collected(choices), answer),
                partial(cancel_all, choices),
                partial(_store, stored, owner, turn),
            )
            return json_response(body)

    @router.post(
        "/v1/responses/input_tokens",
        responses=answers(InputTokens, 400, 404, 503),
        openapi_extra=request_body(ResponseRequest),
    )
    async def count_input_tokens(http: Request) -> Response:
        """The number of tokens of the prompt that an input makes, with all that it continues."""
        owner = account_of(http.scope).name
        with client_field_names():
            found = await bodies.lookup(http, "input_tokens", partial(earlier, stored, owner))
        return Response(found, media_type="application/json")

    @router.get(
        "/v1/responses/{response_id}/input_items",
        responses=answers(InputItems, 400, 404, 503, descriptions=_ERRORS),
    )
    async def list_input_items(
        http: Request,
        response_id: str,
        limit: Annotated[int, Query(ge=1, le=100)] = 20,
        order: Order = "desc",
        after: str | None = None,
    ) -> Response:
        """The items that a response had for input, those of earlier responses included. It is
        stored, or computed in the background."""
        _check_id(response_id)
        owner = account_of(http.scope).name
        running = background.find(owner, response_id)
        body: bytes | None
        try:
            if running and (items := background.input_of(owner, response_id)):
                before = running.previous_response_id
                turns = await stored.conversation(owner, before) if before else []
                turns, body = [*turns, items], msgspec.json.encode(running)
            else:
                turns = await stored.conversation(owner, response_id)
                (body,) = await stored.bodies(owner, [response_id])
        except ConversationUnavailable:
            raise _not_found(response_id) from None
        except BatonError:
            raise unavailable("response_id") from None
        if body is None:
            raise _not_found(response_id)
        return json_response(input_items(turns, body, limit=limit, order=order, after=after))

    @router.get(
        "/v1/responses/{response_id}",
        responses=answers(ResponseBody, 400, 404, 503, descriptions=_ERRORS),
    )
    async def get_response(http: Request, response_id: str, stream: bool = False) -> Response:
        """A stored response, or one that is computed in the background."""
        if stream:
            raise invalid("stream", "a stored response cannot be streamed", UNSUPPORTED)
        _check_id(response_id)
        if running := background.find(account_of(http.scope).name, response_id):
            return json_response(running)
        try:
            (body,) = await stored.bodies(account_of(http.scope).name, [response_id])
        except BatonError:
            raise unavailable("response_id") from None
        if body is None:
            raise _not_found(response_id)
        return Response(body, media_type="application/json")

    @router.post(
        "/v1/responses/{response_id}/cancel",
        responses=answers(ResponseBody, 400, 404, 503, descriptions=_ERRORS),
    )
    async def cancel_response(http: Request, response_id: str) -> Response:
        """Cancel a response that is computed in the background. One that has ended stays as it
        is."""
        _check_id(response_id)
        owner = account_of(http.scope).name
        if ended := await background.cancel(owner, response_id):
            return json_response(ended)
        found = await get_response(http, response_id)
        if not msgspec.json.decode(found.body, type=_Background).background:
            raise invalid("response_id", "only responses with background: true are cancelled")
        return found

    @router.delete(
        "/v1/responses/{response_id}",
        responses=answers(DeletedResponse, 404, 503, descriptions=_ERRORS),
    )
    async def delete_response(http: Request, response_id: str) -> Response:
        """Delete a stored response. Responses that continue it cannot be continued any more."""
        _check_id(response_id)
        owner = account_of(http.scope).name
        await background.cancel(owner, response_id)
        unstored = background.forget(owner, response_id)
        try:
            deleted = await stored.delete(owner, response_id)
        except BatonError:
            raise unavailable("response_id") from None
        if not deleted and not unstored:
            raise _not_found(response_id)
        return json_response(DeletedResponse(id=response_id))

    return router


async def _store(stored: StoredResponses, owner: str, turn: Turn, body: ResponseBody) -> bool:
    """Store a response that has ended, with all that it adds to its conversation."""
    output = [msgspec.Raw(msgspec.json.encode(item)) for item in body.output]
    items = [*msgspec.json.decode(turn.items, type=list[msgspec.Raw]), *output]
    response = StoredResponse(
        body.id,
        body.previous_response_id or "",
        msgspec.json.encode(items),
        msgspec.json.encode(body),
    )
    return await stored.keep(owner, response)


def _check_id(response_id: str) -> None:
    if not is_response_id(response_id):
        raise _not_found(response_id)


def _not_found(response_id: str) -> ApiError:
    message = f"Response with id {quote(response_id)} not found."
    return ApiError(404, message, param="response_id", code="response_not_found")
