"""The endpoints of OpenAI's Responses API for responses that are there: stored, or computed in the
background."""

from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from coordinator.core.contract import StoredResponses
from coordinator.http.auth.accounts import account_of
from coordinator.http.errors import ApiError, invalid, json_response, quote
from coordinator.http.openapi import answers
from coordinator.http.request_fields import UNSUPPORTED
from coordinator.http.responses.background import BackgroundResponses
from coordinator.http.responses.earlier import unavailable
from coordinator.http.responses.input_items import InputItems, Order, input_items
from coordinator.http.responses.item_ids import is_response_id
from coordinator.http.responses.schemas import DeletedResponse, ResponseBody
from coordinator.record.stored_response import ConversationUnavailable
from transport.wire.errors import BatonError

_ERRORS = {
    400: "Streaming a stored response is not supported.",
    404: "No such response: never stored, deleted, expired, or made with another API key.",
    503: "Redis, which keeps responses, does not answer. Retry-After says when to ask again.",
}


class _Background(msgspec.Struct):
    """The one field of a stored body that cancelling asks for."""

    background: bool = False


def stored_routes(stored: StoredResponses, background: BackgroundResponses) -> APIRouter:
    router = APIRouter()

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


def _check_id(response_id: str) -> None:
    if not is_response_id(response_id):
        raise _not_found(response_id)


def _not_found(response_id: str) -> ApiError:
    message = f"Response with id {quote(response_id)} not found."
    return ApiError(404, message, param="response_id", code="response_not_found")
