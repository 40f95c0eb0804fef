"""Connections whose client does not take what is sent to it are closed."""

import asyncio
import logging
from typing import Any

log = logging.getLogger(__name__)

_CHECKS = 4  # within the time that a client has


class WriteDeadline:
    """A transport whose client takes no byte for ``timeout_s`` while some wait is aborted.

    It stands in for ``transport``, so that it sees what is written; looks only while something
    waits, and after up to a quarter of the time more.
    """

    def __init__(
        self, transport: asyncio.Transport, timeout_s: float, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._transport = transport
        self._timeout_s = timeout_s
        self._loop = loop
        self._num_written = 0
        self._num_taken = 0  # when it was last looked at
        self._taken_at = 0.0
        self._next_look: asyncio.TimerHandle | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        self._num_written += len(data)
        self._transport.write(data)
        if self._next_look is None:
            self._taken_at = self._loop.time()
            self._look_later()

    def stop(self) -> None:
        """The connection is closed."""
        if self._next_look is not None:
            self._next_look.cancel()

    def _look(self) -> None:
        self._next_look = None
        num_waiting = self._transport.get_write_buffer_size()
        num_taken = self._num_written - num_waiting
        if num_waiting == 0:
            return
        now = self._loop.time()
        if num_taken != self._num_taken:
            self._num_taken, self._taken_at = num_taken, now
        elif now - self._taken_at >= self._timeout_s:
            log.info("the client reads nothing; %d bytes are dropped", num_waiting)
            self._transport.abort()
            return
        self._look_later()

    def _look_later(self) -> None:
        self._next_look = self._loop.call_later(self._timeout_s / _CHECKS, self._look)
