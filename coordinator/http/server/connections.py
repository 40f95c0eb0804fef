"""How many HTTP connections there may be, and which one is closed for a new one.

Descriptors that clients take are missing for workers, Redis and files; libzmq even aborts where it
finds none for a worker that connects over a Unix socket. So connections have a limit below
them. At the limit the connection that has been idle for longest is closed for the one that comes:
idle is one on which no whole head of a request has come since it was made or was last answered, so
that connecting alone keeps no other client out. Where all are busy, new ones wait in the kernel's
queue.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol


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
