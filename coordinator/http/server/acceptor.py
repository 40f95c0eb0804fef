"""Accepts HTTP connections, as many as the limit allows, a few per turn of the event loop.

Connections beyond the limit wait in the kernel's queue, which no asyncio server can leave them in:
each accepts whatever has connected.
"""

import asyncio
import errno
import logging
import math
import socket
from collections.abc import Callable

from coordinator.http.server.connections import Connections

log = logging.getLogger(__name__)

ACCEPTED_PER_TURN = 4  # a burst of 4,000 then makes turns of 6 ms; 19 ms with 16
_PAUSE_S = 0.5
_FULL_LOGGED_EVERY_S = 10.0
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Acceptor:
    """Accepts connections at ``listener`` while ``connections`` allows, and gives each a protocol
    made by ``make_protocol``, which reports to ``connections`` when it is idle and when it ends.

    Open it on a running loop. ``stop`` accepts no more, and leaves the listener to other processes
    that have it. ``close`` also closes the listener in this process, and connections whose protocol
    is not made yet.
    """

    def __init__(
        self,
        listener: socket.socket,
        make_protocol: Callable[[], asyncio.Protocol],
        connections: Connections,
    ) -> None:
        self._listener = listener
        self._make_protocol = make_protocol
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        self._accepted: set[socket.socket] = set()  # their tasks have not begun
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._resuming: asyncio.TimerHandle | None = None
        self._full_logged_at = -math.inf

    def open(self) -> None:
        self._listener.setblocking(False)
        self._connections.on_room = self._resume
        self._resume()

    def stop(self) -> None:
        self._connections.on_room = lambda: None
        if self._listener.fileno() >= 0:
            self._loop.remove_reader(self._listener)
        if self._resuming is not None:
            self._resuming.cancel()

    def close(self) -> None:
        self.stop()
        self._listener.close()
        # Tasks that have begun are not cancelled: uvloop would still make the protocol, and never
        # tell it that its connection has ended, for which the server then waits.
        self._closed = True
        while self._accepted:
            self._drop(self._accepted.pop())

    def _resume(self) -> None:
        if self._resuming is not None:
            self._resuming.cancel()
            self._resuming = None
        self._loop.add_reader(self._listener, self._accept)

    def _pause(self, pause_s: float) -> None:
        """Stop watching the listener: it stays readable, so the loop would call again and again."""
        self._loop.remove_reader(self._listener)
        if pause_s < math.inf:
            self._resuming = self._loop.call_later(pause_s, self._resume)

    def _accept(self) -> None:
        for _ in range(ACCEPTED_PER_TURN):
            if not self._connections.can_accept():
                self._log_full()
                self._pause(self._connections.next_eviction_in_s())
                return
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                log.error("cannot accept connections for %.1f s: %s", _PAUSE_S, error)
                self._pause(_PAUSE_S)
                return
            self._connections.opened()
            connection.setblocking(False)
            self._accepted.add(connection)
            task = self._loop.create_task(self._serve(connection), name="accept")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _log_full(self) -> None:
        if self._loop.time() - self._full_logged_at > _FULL_LOGGED_EVERY_S:
            self._full_logged_at = self._loop.time()
            limit = self._connections.limit
            log.warning("all %d HTTP connections (BATON_MAX_OPEN) are in use; new ones wait", limit)

    async def _serve(self, connection: socket.socket) -> None:
        if connection not in self._accepted:
            return  # ``close`` has dropped it
        self._accepted.discard(connection)
        try:
            transport, _ = await self._loop.connect_accepted_socket(self._make_protocol, connection)
        except OSError as error:
            log.debug("a connection ended before it was served: %s", error)
            self._drop(connection)
        else:
            if self._closed:
                transport.close()

    def _drop(self, connection: socket.socket) -> None:
        connection.close()
        self._connections.closed()
