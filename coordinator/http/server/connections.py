"""HTTP connections: how they come in, how many there may be, and which one is closed for a new one.

An event loop that serves every connection as it is accepted turns a burst of thousands into one
turn of seconds. Running streams stand still for as long, and the kernel's queue overflows behind
it, which clients see as resets. So a connection waits here, accepted, until the loop has turned.

Descriptors that clients take are missing for workers, Redis and files; libzmq even aborts where it
finds none for a worker that connects over a Unix socket. So connections have a limit below
them. At the limit the connection that has been idle for longest is closed for the one that comes:
idle is one on which no whole head of a request has come since it was made or was last answered, so
that connecting alone keeps no other client out. Where all are busy, new ones wait in the kernel's
queue.
"""

import asyncio
import errno
import logging
import math
import resource
import socket
from collections import deque
from collections.abc import Callable
from typing import Protocol

log = logging.getLogger(__name__)

SPARE_FILES = (
    512  # besides the connections: Redis, workers, logs, those that are accepted and closed
)
FEWEST = 1024  # connections where files allow them: a burst beyond a small limit is told so


def allow_open_files(setting: str, connections: int) -> int:
    """Raise this process's soft limit for so many connections, never lower it. Returns how many it
    leaves room for: at most twice as many or ``FEWEST``, and never what is spare for others.

    Raises ValueError naming ``setting`` and both numbers when the hard limit forbids it.
    """
    needed = connections + SPARE_FILES
    most = max(2 * connections, FEWEST)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return most
    if soft >= needed:
        return min(soft - SPARE_FILES, most)
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ValueError(
            f"{setting}: {connections} needs {needed} open files, and this process may have {hard} "
            "at most; raise the hard limit (ulimit -Hn, LimitNOFILE, ulimits: nofile) or lower it"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    return connections


class Connection(Protocol):
    def evict(self) -> None:
        """Close without waiting for the client; ``Connections.left`` follows."""
        ...


class Connections:
    """The open connections of one HTTP server, all on its event loop. ``quiet`` is set while none
    has a request under way, ``num_begun`` counts requests; ``closing`` says that each connection
    ends with its next answer. ``on_room`` is called once one more may be accepted after ``admits``
    was False, ``on_evicted`` for each that was closed to make room."""

    def __init__(self, limit: int, on_evicted: Callable[[], None] = lambda: None) -> None:
        if limit < 1:
            raise ValueError(f"connections: a limit of {limit}, must be 1 at least")
        self.limit = limit
        self.num_open = 0
        self.num_begun = 0
        self.closing = False
        self.quiet = asyncio.Event()
        self.quiet.set()
        self.on_room: Callable[[], None] = lambda: None
        self._on_evicted = on_evicted
        self._idle: dict[Connection, None] = {}  # in the order in which they became so
        self._leaving: set[Connection] = set()
        self._wanted = False

    def admits(self) -> bool:
        """Whether one more may be accepted: there is room, or an idle one to close."""
        self._wanted = self._full and not self._idle
        return not self._wanted

    def came(self) -> None:
        """One was accepted; at the limit the oldest idle one is closed for it.

        NOTE: that one keeps its descriptor until the loop has turned.
        """
        if self._full:
            self._evict_oldest()
            self._on_evicted()
        self.num_open += 1
        self.quiet.clear()

    def left(self, connection: Connection | None = None) -> None:
        """One is closed; None: one of which no connection of the server's was made."""
        self.num_open -= 1
        if connection is not None:
            self._idle.pop(connection, None)
            self._leaving.discard(connection)
        self._changed()

    def idle(self, connection: Connection) -> None:
        """It waits for the head of a request from now on."""
        if connection not in self._leaving:
            self._idle.pop(connection, None)
            self._idle[connection] = None
            self._changed()

    def busy(self, connection: Connection) -> None:
        """The head of a request has come."""
        self.num_begun += 1
        self._idle.pop(connection, None)
        self.quiet.clear()

    def close_idle(self) -> None:
        """Close all that wait for the head of a request."""
        while self._idle:
            self._evict_oldest()

    @property
    def _full(self) -> bool:
        return self.num_open - len(self._leaving) >= self.limit

    def _evict_oldest(self) -> None:
        assert self._idle, "one was accepted that was not admitted"
        oldest = next(iter(self._idle))
        del self._idle[oldest]
        self._leaving.add(oldest)
        oldest.evict()

    def _changed(self) -> None:
        if self.num_open == len(self._idle) + len(self._leaving):
            self.quiet.set()
        if self._wanted and (self._idle or not self._full):
            self._wanted = False
            self.on_room()


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
