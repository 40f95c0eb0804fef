"""How a coordinator ends that was told to stop.

With a successor (SIGTERM, and its starter keeps the HTTP socket): new connections wait for the
successor. Requests that come on open connections are served, and the last answer on each closes it.
The connections are closed once no request has been under way for ``LINGER_S``, in which clients
send the request that they had ready. Where a proxy waits for the successor it is the same, except
that the kernel refuses new connections.

Without a successor, or after SIGINT: new requests get 503.

In both cases what is open at the deadline fails.
"""

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Protocol

from coordinator.http.server.connections import Connections

log = logging.getLogger(__name__)

LINGER_S = 0.25
"""How long idle connections stay open after the last answer."""


class DrainableHub(Protocol):
    """The hub, as the drain needs it."""

    async def drain(self, timeout_s: float) -> None:
        """Take no more work, wait for what is open, fail what is left."""
        ...


class DrainableServer(Protocol):
    """The HTTP server, as the drain needs it."""

    def hand_over(self) -> None:
        """Accept no more connections, and close each with the end of its next answer."""
        ...

    def accept_again(self) -> None:
        """Accept connections again, since no other process will."""
        ...


class StopSignals:
    """``stop`` is set once this process is to end, ``for_good`` once it has no successor."""

    def __init__(self, *, has_successor: bool) -> None:
        self.stop = asyncio.Event()
        self.for_good = asyncio.Event()
        if not has_successor:
            self.for_good.set()

    def terminate(self) -> None:
        """SIGTERM."""
        self.stop.set()

    def interrupt(self) -> None:
        """SIGINT."""
        self.for_good.set()
        self.stop.set()


async def drain(
    signals: StopSignals,
    hub: DrainableHub,
    http: DrainableServer,
    connections: Connections,
    timeout_s: float,
) -> None:
    """Return when no request is open, after ``timeout_s`` and a moment at most."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    if not signals.for_good.is_set():
        log.info("draining; new connections are left to the next coordinator")
        http.hand_over()
        await first_of(timeout_s, _quiet_for_a_moment(connections), signals.for_good.wait())
        if signals.for_good.is_set():
            http.accept_again()
        elif connections.quiet.is_set():
            connections.close_idle()
    await hub.drain(max(0.0, deadline - loop.time()))


async def _quiet_for_a_moment(connections: Connections) -> None:
    begun = -1
    while not connections.quiet.is_set() or connections.num_requests != begun:
        await connections.quiet.wait()
        begun = connections.num_requests
        await asyncio.sleep(LINGER_S)


async def first_of(timeout_s: float, *waits: Coroutine[Any, Any, Any]) -> None:
    """Return as soon as one of ``waits`` has ended, or after ``timeout_s``."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
