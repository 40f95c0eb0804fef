"""The endpoints that list requests and their timelines.

Reading and laying out the timelines of 200 requests takes 50 ms on the loop that streams. So it is
done in parts, at most twice a second, and once for all clients that ask meanwhile.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Annotated

import msgspec
from fastapi import APIRouter, Query
from starlette.responses import Response

from coordinator.core.contract import Core, History
from coordinator.http.errors import ApiError, json_response, quote
from coordinator.http.openapi import answers
from coordinator.http.response_names import ResponseNames
from coordinator.http.shared_answer import SharedAnswer
from coordinator.http.timeline import RequestList, RequestTimeline, timeline
from transport.wire.errors import BatonError, MalformedMessage

log = logging.getLogger(__name__)

MAX_LISTED = 200

_RETRY_AFTER_S = 2.0
_EVERY_S = 0.5
_LAID_OUT_PER_TURN = 20
_ERRORS = {
    400: "limit is not a number in its range.",
    404: "No such request, or it ended more than an hour ago; or its record is damaged.",
    503: "Redis, which keeps the record, does not answer. Retry-After says when to ask again.",
}


class LastRequests:
    """The most recent requests of a History; one per app. ``now`` and ``core`` are those of
    ``history_routes``."""

    def __init__(
        self,
        history: History,
        now: Callable[[], float],
        core: Core,
    ) -> None:
        self._history, self._now, self._core = history, now, core
        self._most = 0  # of all requests that wait
        self._shared = SharedAnswer(self._read, every_s=_EVERY_S)

    async def get(self, most: int) -> list[msgspec.Raw]:
        """The JSON of up to ``most`` RequestTimelines, the newest first. Raises what the history
        raises."""
        self._most = max(self._most, most)
        return (await self._shared.get())[:most]

    async def _read(self) -> list[msgspec.Raw]:
        most, self._most = self._most, 0
        records = await self._history.recent(most)
        now = self._now()
        entries: list[msgspec.Raw] = []
        for first in range(0, len(records), _LAID_OUT_PER_TURN):
            some = records[first : first + _LAID_OUT_PER_TURN]
            for record in some:
                found = timeline(record, now, self._core.num_output(record.request_id))
                entries.append(msgspec.Raw(msgspec.json.encode(found)))
            await asyncio.sleep(0)
        return entries


def history_routes(
    history: History,
    now: Callable[[], float],
    names: ResponseNames,
    core: Core,
) -> APIRouter:
    """The routes. ``now`` returns Unix seconds, as in create_app. ``core`` knows the output tokens
    of open requests: their records change only with their state."""
    router = APIRouter(tags=["history"])

    last = LastRequests(history, now, core)

    @router.get("/v1/requests/", include_in_schema=False)
    @router.get("/v1/requests", responses=answers(RequestList, 400, 503, descriptions=_ERRORS))
    async def requests(limit: Annotated[int, Query(ge=1, le=MAX_LISTED)] = 20) -> Response:
        """The timelines of the requests that were received last, the last one first."""
        try:
            entries = await last.get(limit)
        except BatonError as error:
            raise _unavailable(error) from error
        return json_response({"object": "list", "data": entries})

    @router.get(
        "/v1/requests/{request_id:path}",  # a client's name for it may hold slashes
        responses=answers(RequestTimeline, 404, 503, descriptions=_ERRORS),
    )
    async def one_request(request_id: str) -> Response:
        """A request's timeline, by the ``id`` of its response with or without the prefix. Each
        choice of several is a request: ``-0``, ``-1``, … follow the id then."""
        try:
            record = await history.get(names.request_id(request_id.removesuffix("/")))
        except MalformedMessage as error:
            log.warning("the record of %s cannot be read: %s", quote(request_id), error)
            message = f"The record of request {quote(request_id)} is damaged and cannot be read."
            raise ApiError(404, message, param="request_id", code="record_unreadable") from error
        except BatonError as error:
            raise _unavailable(error) from error
        if record is None:
            message = f"There is no record of a request {quote(request_id)}."
            raise ApiError(404, message, param="request_id", code="request_not_found")
        return json_response(timeline(record, now(), core.num_output(record.request_id)))

    return router


def _unavailable(error: BatonError) -> ApiError:
    # The answer must not say where Redis is. Only DEBUG: the store warns, and pages ask repeatedly.
    log.debug("a request's record cannot be read: %s", error)
    message = "The record of requests cannot be read now: Redis does not answer."
    return ApiError(503, message, code="record_unavailable", retry_after_s=_RETRY_AFTER_S)
