"""Connections whose client does not finish the head of a request, or sends one without end, are
closed."""

import asyncio
import fcntl
import logging
import termios
from typing import Any

from uvicorn.config import Config
from uvicorn.server import ServerState

from coordinator.http.http_settings import HttpSettings
from coordinator.http.server.connections import Connections
from coordinator.http.server.http_protocol import HttpProtocol

log = logging.getLogger(__name__)

MAX_HEAD_BYTES = 256 * 1024
"""Limit of a head, and of the trailers of a body: far above any client's. The parser copies a
header that grows, so a long one is slow as well."""


class HeadDeadline(HttpProtocol):
    """HttpProtocol with a deadline of ``head_timeout_s`` and a limit of bytes for each head.

    The first head has its time from the connection on. A later one has it from its first byte;
    until then the keep-alive timer runs. If a request was answered before its body had arrived, the
    rest of the body counts as a head. ``connections`` are told when the connection waits for a
    head, when one arrives, and when the connection ends.

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
        self._in_head = False
        self._num_bytes = 0  # since a head or a piece of a body ended

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._all.mark_idle(self)
        self._expect_head()

    def has_unread(self) -> bool:
        """True if bytes of the client wait in the kernel."""
        connection = self.transport.get_extra_info("socket")
        return any(fcntl.ioctl(connection.fileno(), termios.FIONREAD, bytes(4)))

    def evict(self) -> None:
        """Close an idle connection to make room; reset it if its client takes no answer."""
        if self.transport.get_write_buffer_size():
            self._write_deadline.reset()
        else:
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        self._num_bytes += len(data)
        self._all.mark_receiving(self)
        super().data_received(data)
        if self._num_bytes > MAX_HEAD_BYTES:
            log.debug("headers of over %d bytes; closing %s", MAX_HEAD_BYTES, self.client)
            self.transport.close()
        answered = self.cycle is None or self.cycle.response_complete
        if answered and self._head_due is None:
            self._expect_head()

    def on_message_begin(self) -> None:
        self._in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._num_bytes = 0
        if self.parser.should_upgrade():
            return  # the head comes again, without the offer, if it is served
        self._stop_expecting()
        self._all.mark_busy(self)
        super().on_headers_complete()
        if self._all.closing or self._all.is_waiting:
            self.cycle.keep_alive = False

    def close_after_answer(self) -> None:
        """Keep the connection no longer than a request that is running, if its head can still say
        so; else no longer than the next one: its client may send that at any moment."""
        if self.cycle is not None and not self.cycle.response_started:
            self.cycle.keep_alive = False

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete:
            self._all.mark_idle(self)
            if self._in_head:
                self._all.mark_receiving(self)

    def on_body(self, body: bytes) -> None:
        self._num_bytes = 0
        super().on_body(body)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_expecting()
        super().connection_lost(exc)
        self._all.closed(self)

    def _expect_head(self) -> None:
        self._head_due = self.loop.call_later(self._head_timeout_s, self._give_up)

    def _stop_expecting(self) -> None:
        if self._head_due is not None:
            self._head_due.cancel()
            self._head_due = None

    def _give_up(self) -> None:
        log.debug("no request arrived within %g s; closing %s", self._head_timeout_s, self.client)
        self.transport.close()
