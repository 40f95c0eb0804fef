"""Responses that are computed in the background: their client asks for them later, by their id.

1. ``start`` runs the response's work in a task; it needs no connection.
2. ``find`` returns the body of one that still runs, ``input_of`` the items of its input. Once it
   has ended, its store has both.
3. ``cancel`` ends it; its body then says ``cancelled``, and is stored as any other.

The running ones are in this process alone: another coordinator finds a response once it has ended.
A response whose end could not be stored stays here, among the newest ``MAX_UNSTORED``.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from msgspec import structs

from coordinator.core.contract import GenerationFailed
from coordinator.http.errors import from_core, internal_error
from coordinator.http.responses.answer import response_error
from coordinator.http.responses.schemas import ResponseBody

log = logging.getLogger(__name__)

MAX_UNSTORED = 100
Work = Callable[[], Coroutine[Any, Any, ResponseBody]]
Store = Callable[[ResponseBody], Awaitable[bool]]
_Name = tuple[str, str]


@dataclass(frozen=True)
class _Running:
    """A response in progress. Only ``work`` is ever cancelled; ``ending`` stores what it comes
    to. ``items``: JSON of what its request added to the conversation."""

    body: ResponseBody
    items: bytes
    work: asyncio.Task[ResponseBody]
    ending: asyncio.Task[ResponseBody]


class BackgroundResponses:
    """The background responses of one app, by their owner (the name of an API key) and id."""

    def __init__(self) -> None:
        self._running: dict[_Name, _Running] = {}
        self._unstored: OrderedDict[_Name, ResponseBody] = OrderedDict()

    def start(
        self,
        owner: str,
        body: ResponseBody,
        items: bytes,
        work: Work,
        release: Callable[[], None],
        store: Store,
    ) -> None:
        """Run ``work``, which returns the whole response, stored; then ``release`` what it used.
        ``body``: the response in progress; ``items``: JSON of the input items of its own request.
        ``store`` stores one that failed or was cancelled."""
        name = owner, body.id

        async def run() -> ResponseBody:
            return await work()

        working = asyncio.create_task(run(), name=f"background {body.id}")
        # NOTE: a task that is cancelled before its first step runs none of its own cleaning up.
        working.add_done_callback(lambda _: release())
        ending = asyncio.create_task(self._end(name, body, working, store))
        self._running[name] = _Running(body, items, working, ending)

    def find(self, owner: str, response_id: str) -> ResponseBody | None:
        """The body of a response that runs, or whose end is not stored."""
        running = self._running.get((owner, response_id))
        return running.body if running else self._unstored.get((owner, response_id))

    def input_of(self, owner: str, response_id: str) -> bytes | None:
        """JSON of the items that the request of a running response added to its conversation."""
        running = self._running.get((owner, response_id))
        return running.items if running else None

    async def cancel(self, owner: str, response_id: str) -> ResponseBody | None:
        """Cancel a response that runs, and return its body at its end. None for a response that
        ``find`` does not find."""
        if (running := self._running.get((owner, response_id))) is None:
            return self._unstored.get((owner, response_id))
        running.work.cancel()
        return await asyncio.shield(running.ending)

    def forget(self, owner: str, response_id: str) -> bool:
        """Drop a response that could not be stored. True if there was one."""
        return self._unstored.pop((owner, response_id), None) is not None

    async def _end(
        self, name: _Name, body: ResponseBody, work: asyncio.Task[ResponseBody], store: Store
    ) -> ResponseBody:
        await asyncio.wait([work])
        if work.cancelled():
            ended = structs.replace(body, status="cancelled")
        elif error := work.exception():
            if not isinstance(error, GenerationFailed):
                log.error("a background response failed", exc_info=error)
            failed = from_core(error) if isinstance(error, GenerationFailed) else internal_error()
            ended = structs.replace(body, status="failed", error=response_error(failed))
        else:
            ended = work.result()
        if ended.status in ("cancelled", "failed"):
            ended.store = await store(ended)
        del self._running[name]
        if not ended.store:
            self._unstored[name] = ended
            while len(self._unstored) > MAX_UNSTORED:
                self._unstored.popitem(last=False)
        return ended
