"""A streamed response: the server-sent events of each delta, sent at once."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from coordinator.core.contract import GenerationFailed
from coordinator.http.answer import Answer
from coordinator.http.choice import Choice, merged
from coordinator.http.errors import ApiError, from_core, internal_error
from coordinator.http.while_connected import ClientDisconnected, while_connected

log = logging.getLogger(__name__)

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class EventStream(Response):
    """A streamed response. Its life:

    1. Nothing is sent before the first delta, so an early failure still gets its own status.
    2. Each delta is sent as its events; a failure from here on is an event too.
    3. The answer's last event always ends it, unless the client has disconnected; ``recorded``
       comes before. If it is not sent, ``cut`` is called.
    4. However it ends, all choices that have not ended are cancelled.
    """

    def __init__(
        self,
        choices: Sequence[Choice],
        answer: Answer,
        recorded: Callable[[], Awaitable[None]],
        cut: Callable[[], None],
    ) -> None:
        self._choices = choices
        self._answer = answer
        self._recorded = recorded
        self._cut = cut
        self._sent = False
        self._started = False
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await while_connected(self._deliver(scope, receive, send), receive)
        except ClientDisconnected as left:
            log.debug("stream abandoned", extra={"reason": str(left)})
        finally:
            self._cancel()
            if not self._sent:
                self._cut()

    def _cancel(self) -> None:
        for choice in self._choices:
            choice.stream.cancel()

    async def _deliver(self, scope: Scope, receive: Receive, send: Any) -> None:
        try:
            await self._send_deltas(send)
            last = await self._answer.end()
        except Exception as error:
            failed = _failed(error)
            self._cancel()
            if not self._started:
                await self._recorded()
                await failed.response()(scope, receive, send)
                self._sent = True
                return
            last = self._answer.failure(failed)
        await self._recorded()
        await send({"type": "http.response.body", "body": last})
        self._sent = True

    async def _send_deltas(self, send: Any) -> None:
        async for index, delta in merged(self._choices):
            if not (events := self._answer.events(index, delta)):
                continue
            if not self._started:
                self._started = True
                await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            await send({"type": "http.response.body", "body": events, "more_body": True})


def _failed(error: Exception) -> ApiError:
    if isinstance(error, GenerationFailed):
        log.debug("generation failed", extra={"code": error.code, "why": str(error)})
        return from_core(error)
    log.error("error while streaming", exc_info=error)
    return internal_error()
