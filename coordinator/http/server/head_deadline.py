"""Connections whose client does not finish the head of a request, or sends one without end, are
closed."""

import asyncio
import logging
from typing import Any

from uvicorn.config import Config
from uvicorn.server import ServerState

from coordinator.http.http_settings import HttpSettings
from coordinator.http.server.connections import Connections
from coordinator.http.server.http_protocol import HttpProtocol

log = logging.getLogger(__name__)

MAX_HEAD_BYTES = 256 * 1024
"""Of a head, or of what trails a body: far above any client's. The parser copies a header that
grows, so a long one is slow as well."""


class HeadDeadline(HttpProtocol):
    """HttpProtocol with ``head_timeout_s`` for a head to be whole: the first from the
    connection on, later ones from their first byte, until which the keep-alive timer runs. Of a
    request that was answered before its body had come, the rest of the body counts as a head. And
    with a bound for the length of heads and trailers. ``connections`` are told when it waits for a
    head, and when it ends.

    NOTE: without this a client that connects and says nothing, or half a line, holds its file
    descriptor for ever: uvicorn's own timer begins only with the end of a response.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        settings: HttpSettings,
        connections: Connections,
    ) -> None:
        super().__init__(config, server_state, app_state, settings.write_timeout_s)
        self._all = connections
        self._head_timeout_s = settings.head_timeout_s
        self._head_due: asyncio.TimerHandle | None = None
        self._num_bytes = 0  # since a head or a piece of a body ended

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._all.idle(self)
        self._expect_head()

    def evict(self) -> None:
        """Close an idle connection to make room, unless its client takes no answer: abort that."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        self._num_bytes += len(data)
        super().data_received(data)
        if self._num_bytes > MAX_HEAD_BYTES:
            log.debug("headers of over %d bytes; closing %s", MAX_HEAD_BYTES, self.client)
            self.transport.close()
        answered = self.cycle is None or self.cycle.response_complete
        if answered and self._head_due is None:
            self._expect_head()

    def on_headers_complete(self) -> None:
        self._num_bytes = 0
        self._stop_expecting()
        self._all.busy(self)
        super().on_headers_complete()
        if self._all.closing:
            self.cycle.keep_alive = False

    def close_after_answer(self) -> None:
        """Keep the connection no longer than a request that is under way, if its head can still
        say so; else no longer than the next one: its client may send that at any moment."""
        if self.cycle is not None and not self.cycle.response_started:
            self.cycle.keep_alive = False

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete:
            self._all.idle(self)

    def on_body(self, body: bytes) -> None:
        self._num_bytes = 0
        super().on_body(body)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_expecting()
        super().connection_lost(exc)
        self._all.left(self)

    def _expect_head(self) -> None:
        self._head_due = self.loop.call_later(self._head_timeout_s, self._give_up)

    def _stop_expecting(self) -> None:
        if self._head_due is not None:
            self._head_due.cancel()
            self._head_due = None

    def _give_up(self) -> None:
        log.debug("no request came within %g s; closing %s", self._head_timeout_s, self.client)
        self.transport.close()
