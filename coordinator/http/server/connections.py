"""The limit of open HTTP connections, and which connection is closed to make room for a new one.

Connections use file descriptors that workers, Redis and files need too; libzmq even aborts if it
has none for a worker that connects over a Unix socket. So the limit is below that of open files. At
the limit the connection that has been silent for longest is closed for a new one. Silent means: its
client has sent nothing for ``min_silent_s``, since it connected or since its last answer. If no
connection is silent, new ones wait in the kernel's queue."""

import math
import time
from asyncio import Event
from collections.abc import Callable
from typing import Protocol

MIN_SILENT_S = 1.0
"""A client that has just connected is about to send its request."""


class Connection(Protocol):
    def has_unread(self) -> bool:
        """True if bytes of its client wait in the kernel."""
        ...

    def evict(self) -> None:
        """Close without waiting for the client; ``Connections.closed`` follows."""
        ...


class Connections:
    """The open connections of one HTTP server, all on its event loop.

    ``quiet`` is set while no request is running. ``num_requests`` counts the requests that have
    begun. ``closing``: each connection ends with its next answer. ``is_waiting``: new connections
    wait because the limit is reached. ``on_room`` is called when a connection may be accepted again
    after ``can_accept`` was False, ``on_evicted`` for each one that was closed to make room."""

    def __init__(
        self,
        limit: int,
        on_evicted: Callable[[], None] = lambda: None,
        *,
        min_silent_s: float = MIN_SILENT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if limit < 1:
            raise ValueError(f"connections: a limit of {limit}, must be 1 at least")
        self.limit = limit
        self.num_open = 0
        self.num_requests = 0
        self.closing = False
        self.is_waiting = False
        self.quiet = Event()
        self.quiet.set()
        self.on_room: Callable[[], None] = lambda: None
        self._on_evicted = on_evicted
        self._min_silent_s = min_silent_s
        self._clock = clock
        self._idle: set[Connection] = set()
        self._silent: dict[Connection, float] = {}  # since when, the longest first; all are idle
        self._evicted: set[Connection] = set()

    @property
    def is_full(self) -> bool:
        return self.num_open - len(self._evicted) >= self.limit

    def can_accept(self) -> bool:
        """True if there is room for one more, or a silent connection that can be closed for it."""
        self.is_waiting = self.is_full and self._longest_silent() is None
        return not self.is_waiting

    def next_eviction_in_s(self) -> float:
        """Seconds until a connection will have been silent for long enough; infinity without
        one."""
        since = next(iter(self._silent.values()), math.inf)
        return max(0.0, since + self._min_silent_s - self._clock())

    def opened(self) -> None:
        """Count an accepted connection; at the limit close the longest silent one for it.

        NOTE: the closed one keeps its descriptor until the loop has turned.
        """
        if self.is_full:
            oldest = self._longest_silent()
            assert oldest is not None, "a connection was accepted beyond the limit"
            self._evict(oldest)
            self._on_evicted()
        self.num_open += 1
        self.quiet.clear()

    def closed(self, connection: Connection | None = None) -> None:
        """Count a closed connection. None: it was closed before a protocol was made for it."""
        self.num_open -= 1
        if connection is not None:
            self._forget(connection)
            self._evicted.discard(connection)
        self._changed()

    def mark_idle(self, connection: Connection) -> None:
        """The connection waits for the head of a request, and its client has sent nothing yet."""
        if connection not in self._evicted:
            self._forget(connection)
            self._idle.add(connection)
            self._silent[connection] = self._clock()
            self._changed()

    def mark_receiving(self, connection: Connection) -> None:
        """A part of a head has arrived: the connection is idle, but it is not silent."""
        self._silent.pop(connection, None)

    def mark_busy(self, connection: Connection) -> None:
        """The whole head of a request has arrived."""
        self.num_requests += 1
        self._forget(connection)
        self.quiet.clear()

    def close_idle(self) -> None:
        """Close all connections that wait for the head of a request."""
        while self._idle:
            self._evict(next(iter(self._idle)))

    def _longest_silent(self) -> Connection | None:
        while self._silent and self.next_eviction_in_s() == 0:
            oldest = next(iter(self._silent))
            if not oldest.has_unread():
                return oldest
            del self._silent[oldest]  # its protocol will be given the bytes in this turn
        return None

    def _forget(self, connection: Connection) -> None:
        self._idle.discard(connection)
        self._silent.pop(connection, None)

    def _evict(self, connection: Connection) -> None:
        self._forget(connection)
        self._evicted.add(connection)
        connection.evict()

    def _changed(self) -> None:
        if self.num_open == len(self._idle) + len(self._evicted):
            self.quiet.set()
        if self.is_waiting and (self._silent or not self.is_full):
            self.is_waiting = False
            self.on_room()
