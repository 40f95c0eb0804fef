"""Finds worker processes that have ended, by their connections.

Each heartbeat finds the workers that messages no longer reach. Dead ones are found sooner, when a
connection closes: the channel says that some connection has ended, not whose, so every worker is
probed. A worker that cannot be reached is either dead or about to reconnect, which takes a live one
less than 100 ms. The probes go on until a worker was reached or missed ``MISSES`` times in a row.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Set
from itertools import count

from transport.wire.messages import Alive, ToWorker

PROBE_EVERY_S = 0.05
MISSES = 4
_MISSED_BEATS = 2


class ConnectionMonitor:
    """Counts which workers the heartbeats reach. ``send`` returns True if a worker was reached;
    ``coordinator`` is the instance of this process."""

    def __init__(self, send: Callable[[str, ToWorker], bool], coordinator: str) -> None:
        self._send = send
        self._alive = Alive(coordinator)
        self._missed: dict[str, int] = {}

    def reaches(self, instance: str) -> bool:
        """Send a worker an Alive. True if it is connected."""
        return self._send(instance, self._alive)

    def beat(self, instances: Iterable[str]) -> set[str]:
        """Once per heartbeat: send each worker an Alive. Returns the workers that two heartbeats in
        a row did not reach: the connection of a dead process closes at once, and a live one has
        reconnected by then."""
        self._missed = {
            instance: 0 if self.reaches(instance) else self._missed.get(instance, 0) + 1
            for instance in instances
        }
        return {each for each, missed in self._missed.items() if missed >= _MISSED_BEATS}


class ClosedConnections:
    """Finds workers whose process has ended, as soon as a connection closes. ``reaches`` probes one
    of ``instances``; ``gone`` is called with the instances whose process has ended. ``clock`` and
    ``sleep`` are the event loop's."""

    def __init__(
        self,
        reaches: Callable[[str], bool],
        instances: Callable[[], Set[str]],
        gone: Callable[[set[str]], None],
        *,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._reaches = reaches
        self._instances = instances
        self._gone = gone
        self._clock = clock
        self._sleep = sleep
        self._ended = asyncio.Event()

    def one_ended(self) -> None:
        """Note that some connection has ended."""
        self._ended.set()

    async def watch(self) -> None:
        """Probe all instances after each ended connection, until cancelled."""
        while True:
            await self._ended.wait()
            self._ended.clear()
            await self._probe()

    async def _probe(self) -> None:
        missed = dict.fromkeys(self._instances(), 0)
        for number in count():
            began = self._clock()
            missed = {i: 0 if self._reaches(i) else times + 1 for i, times in missed.items()}
            if gone := {i for i, times in missed.items() if times >= MISSES}:
                self._gone(gone)
            # NOTE: the socket learns of an ended connection up to some milliseconds after its
            # monitor does, so only the second probe proves that a worker is reached.
            reached = {i for i, times in missed.items() if times == 0 and number > 0}
            missed = {i: times for i, times in missed.items() if i not in gone | reached}
            if not missed:
                return
            await self._sleep(PROBE_EVERY_S)
            if self._clock() - began > 2 * PROBE_EVERY_S:
                # This event loop stood still, and with it the handshakes that it answers.
                missed = dict.fromkeys(missed, 0)
