"""A transport whose client must read: a client that takes no byte for too long is disconnected."""

import asyncio
import logging
import socket
import struct
from typing import Any

log = logging.getLogger(__name__)

_CHECKS = 4  # per deadline
_NO_LINGER = struct.pack("ii", 1, 0)


class WriteDeadline:
    """Wraps ``transport`` and resets the connection if the client takes no byte of what waits for
    it in ``timeout_s``.

    Checks only while something waits, four times per deadline, so it may act a quarter late.
    """

    def __init__(
        self, transport: asyncio.Transport, timeout_s: float, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._transport = transport
        self._timeout_s = timeout_s
        self._loop = loop
        self._num_written = 0
        self._num_taken = 0  # at the last check
        self._taken_at = 0.0
        self._next_check: asyncio.TimerHandle | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        self._num_written += len(data)
        self._transport.write(data)
        if self._next_check is None:
            self._taken_at = self._loop.time()
            self._check_later()

    def reset(self) -> None:
        """Close the connection with a reset, so that the kernel drops what the client has not taken
        instead of keeping it, megabytes for minutes, for a client that reads nothing."""
        connection = self._transport.get_extra_info("socket")
        if connection is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self._transport.abort()

    def stop(self) -> None:
        """End the checks; the connection is closed."""
        if self._next_check is not None:
            self._next_check.cancel()

    def _check(self) -> None:
        self._next_check = None
        num_waiting = self._transport.get_write_buffer_size()
        num_taken = self._num_written - num_waiting
        if num_waiting == 0:
            return
        now = self._loop.time()
        if num_taken != self._num_taken:
            self._num_taken, self._taken_at = num_taken, now
        elif now - self._taken_at >= self._timeout_s:
            log.info("the client reads nothing; %d bytes are dropped", num_waiting)
            self.reset()
            return
        self._check_later()

    def _check_later(self) -> None:
        self._next_check = self._loop.call_later(self._timeout_s / _CHECKS, self._check)
