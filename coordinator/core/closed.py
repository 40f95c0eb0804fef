"""Finds a dead worker as soon as its connection ends.

The channel says that some connection has ended, not whose. So every worker is probed: one that
cannot be reached is either dead or about to connect anew, which takes a live one less than 100 ms.
The probes go on until it was reached, or missed ``MISSES`` times in a row.
"""

import asyncio
from collections.abc import Awaitable, Callable, Set
from itertools import count

PROBE_EVERY_S = 0.05
MISSES = 4


class ClosedConnections:
    """``reaches`` probes one of ``instances``; ``gone`` is told which have no process any more.
    ``clock`` and ``sleep`` are the event loop's."""

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
        """Some connection has ended."""
        self._ended.set()

    async def watch(self) -> None:
        """Probe whenever a connection has ended, until cancelled."""
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
            # monitor does, so that only the second probe tells that one is reached.
            reached = {i for i, times in missed.items() if times == 0 and number > 0}
            missed = {i: times for i, times in missed.items() if i not in gone | reached}
            if not missed:
                return
            await self._sleep(PROBE_EVERY_S)
            if self._clock() - began > 2 * PROBE_EVERY_S:
                # This loop stood still, and with it the handshakes that it answers.
                missed = dict.fromkeys(missed, 0)
