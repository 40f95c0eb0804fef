"""How HTTP connections come in.

An event loop that serves every connection as it is accepted turns a burst of thousands into one
turn of seconds. Running streams stand still for as long, and the kernel's queue overflows behind
it, which clients see as resets. So a connection waits here, accepted, until the loop has turned.
"""

import asyncio
import errno
import logging
import math
import socket
from collections import deque
from collections.abc import Callable

from coordinator.http.server.connections import Connections

log = logging.getLogger(__name__)

ACCEPTED_A_TURN = 256
# About 30 ms of work. Fewer would keep a health check waiting for as long as a burst is let in.
LET_IN_A_TURN = 64
_PAUSE_S = 0.5
_FULL_LOGGED_EVERY_S = 10.0
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class AcceptThrottle:
    """Serves what comes in at ``listener`` with a protocol of ``make_protocol`` each, as many at a
    time as ``connections`` allow; the protocols tell these when they are idle and when they end.

    Open it on a running loop, once. ``stop`` accepts no more; another process that has the listener
    does. ``close`` closes the listener, for this process, and the connections that still wait.
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
        self._waiting: deque[socket.socket] = deque()
        self._letting_in: asyncio.Task[None] | None = None
        self._reopening: asyncio.TimerHandle | None = None
        self._full_logged_at = -math.inf

    def open(self) -> None:
        self._listener.setblocking(False)
        self._connections.on_room = self._watch
        self._watch()

    def stop(self) -> None:
        self._connections.on_room = lambda: None
        if self._listener.fileno() >= 0:
            self._loop.remove_reader(self._listener)
        if self._reopening is not None:
            self._reopening.cancel()

    def close(self) -> None:
        self.stop()
        if self._letting_in is not None:
            self._letting_in.cancel()
        self._listener.close()
        while self._waiting:
            self._drop(self._waiting.popleft())

    def _watch(self) -> None:
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTED_A_TURN):
            if not self._connections.admits():
                self._wait_for_room()
                break
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                break
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                self._pause(error)
                break
            self._connections.came()
            connection.setblocking(False)
            self._waiting.append(connection)
        if self._waiting and (self._letting_in is None or self._letting_in.done()):
            self._letting_in = self._loop.create_task(self._let_in(), name="accept")

    def _pause(self, error: OSError) -> None:
        """Without a pause the loop would be called again and again: the listener stays readable."""
        log.error("cannot accept connections for %.1f s: %s", _PAUSE_S, error)
        self._loop.remove_reader(self._listener)
        self._reopening = self._loop.call_later(_PAUSE_S, self._watch)

    def _wait_for_room(self) -> None:
        self._loop.remove_reader(self._listener)
        if self._loop.time() - self._full_logged_at > _FULL_LOGGED_EVERY_S:
            self._full_logged_at = self._loop.time()
            most = self._connections.limit
            log.warning("%d connections are open and busy, which is the limit; new ones wait", most)

    async def _let_in(self) -> None:
        while self._waiting:
            few = [self._waiting.popleft() for _ in range(min(LET_IN_A_TURN, len(self._waiting)))]
            await asyncio.gather(*map(self._serve, few))

    def _drop(self, connection: socket.socket) -> None:
        connection.close()
        self._connections.left()

    async def _serve(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._make_protocol, connection)
        except OSError as error:  # it has gone while it waited
            log.debug("a connection ended before it was served: %s", error)
            self._drop(connection)
