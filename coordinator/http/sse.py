"""A streamed response: one server-sent event for each delta, at once."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from coordinator.core.contract import GenerationFailed
from coordinator.http.choice import Choice, merged
from coordinator.http.connection import ClientLeft, while_connected
from coordinator.http.errors import ApiError, from_core, internal_error
from coordinator.http.response_schemas import Usage
from coordinator.http.writers import Writer

log = logging.getLogger(__name__)

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
_encode = msgspec.json.Encoder().encode


class EventStream(Response):
    """The life of a stream:

    1. Nothing is sent before the first delta, so an early failure still gets its own status.
    2. Each delta is one ``data:`` event; a failure from here on is an event too.
    3. ``data: [DONE]`` always ends it, unless the client left; ``recorded`` comes before.
       Where it is not sent, ``cut`` is called.
    4. However it ends, no choice goes on: what has not ended is cancelled.
    """

    def __init__(
        self,
        choices: Sequence[Choice],
        writer: Writer,
        prompt_tokens: int,
        recorded: Callable[[], Awaitable[None]],
        cut: Callable[[], None],
        *,
        include_usage: bool,
        continuous_usage: bool,
    ) -> None:
        self._choices = choices
        self._writer = writer
        self._prompt_tokens = prompt_tokens
        self._recorded = recorded
        self._cut = cut
        self._sent = False
        self._include_usage = include_usage
        self._continuous_usage = continuous_usage
        self._started = False
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await while_connected(self._deliver(scope, receive, send), receive)
        except ClientLeft as left:
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
        except Exception as error:
            answer = _answer(error)
            self._cancel()
            if not self._started:
                await self._recorded()
                await answer.response()(scope, receive, send)
                self._sent = True
                return
            await send(_event(answer.body()))
        await self._recorded()
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})
        self._sent = True

    async def _send_deltas(self, send: Any) -> None:
        num_tokens = 0
        usage: Usage | UnsetType | None = None if self._include_usage else UNSET
        async for index, delta in merged(self._choices):
            num_tokens += len(delta.tokens)
            if self._continuous_usage:
                usage = Usage.of(self._prompt_tokens, num_tokens)
            if (chunk := self._writer.chunk(index, delta, usage)) is None:
                continue
            if not self._started:
                self._started = True
                await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            await send(_event(chunk))
        if self._include_usage:
            usage = Usage.of(self._prompt_tokens, num_tokens)
            await send(_event(self._writer.last_chunk(usage)))


def _answer(error: Exception) -> ApiError:
    if isinstance(error, GenerationFailed):
        log.debug("generation failed", extra={"code": error.code, "why": str(error)})
        return from_core(error)
    log.error("error while streaming", exc_info=error)
    return internal_error()


def _event(body: Any) -> dict[str, Any]:
    return {
        "type": "http.response.body",
        "body": b"data: %b\n\n" % _encode(body),
        "more_body": True,
    }
