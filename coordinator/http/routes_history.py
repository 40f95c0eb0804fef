"""The endpoints that tell what became of requests."""

import logging
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import Response

from coordinator.core.contract import History
from coordinator.http.errors import ApiError, json_response, quote
from coordinator.http.last_requests import LastRequests
from coordinator.http.responses import ErrorBody
from coordinator.http.responses_history import RequestList, RequestTimeline
from coordinator.record.redis_link import RedisUnavailable
from coordinator.record.timeline import timeline
from transport.wire.errors import MalformedMessage

log = logging.getLogger(__name__)

MAX_LISTED = 200

_RETRY_AFTER_S = 2.0
_PREFIXES = ("chatcmpl-", "cmpl-")
_ERRORS = {
    400: "limit is not a number in its range.",
    404: "No such request, or it ended more than an hour ago; or its record is damaged.",
    503: "Redis, which keeps the record, does not answer. Retry-After says when to ask again.",
}


def history_routes(history: History, now: Callable[[], float]) -> APIRouter:
    """``now`` gives Unix seconds, as create_app has it."""
    router = APIRouter(tags=["history"])

    last = LastRequests(history, now)

    @router.get("/v1/requests", responses=_responses(RequestList, 400, 503))
    async def requests(limit: Annotated[int, Query(ge=1, le=MAX_LISTED)] = 20) -> Response:
        """The timelines of the requests that were received last, the last one first."""
        try:
            entries = await last.get(limit)
        except RedisUnavailable as error:
            raise _unavailable(error) from error
        return json_response({"object": "list", "data": entries})

    @router.get("/v1/requests/{request_id}", responses=_responses(RequestTimeline, 404, 503))
    async def one_request(request_id: str) -> Response:
        """A request's timeline, by the ``id`` of its response with or without the prefix. Each
        choice of several is a request: ``-0``, ``-1``, … follow the id then."""
        for prefix in _PREFIXES:
            request_id = request_id.removeprefix(prefix)
        try:
            record = await history.get(request_id)
        except RedisUnavailable as error:
            raise _unavailable(error) from error
        except MalformedMessage as error:
            log.warning("the record of %s cannot be read: %s", quote(request_id), error)
            message = f"The record of request {quote(request_id)} is damaged and cannot be read."
            raise ApiError(404, message, param="request_id", code="record_unreadable") from error
        if record is None:
            message = f"There is no record of a request {quote(request_id)}."
            raise ApiError(404, message, param="request_id", code="request_not_found")
        return json_response(timeline(record, now()))

    return router


def _unavailable(error: RedisUnavailable) -> ApiError:
    # Where Redis is stays in here. The store warns when it is gone; pages ask again and again.
    log.debug("a request's record cannot be read: %s", error)
    message = "The record of requests cannot be read now: Redis does not answer."
    return ApiError(503, message, code="record_unavailable", retry_after_s=_RETRY_AFTER_S)


def _responses(model: type, *statuses: int) -> dict[int | str, dict[str, Any]]:
    errors: dict[int | str, dict[str, Any]] = {
        status: {"model": ErrorBody, "description": _ERRORS[status]} for status in statuses
    }
    return {200: {"model": model}, **errors}
