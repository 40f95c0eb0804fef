"""Finds workers that are dead or of no use, and requests that take too long.

With each heartbeat: those that are silent, that messages no longer reach, that only fail. And as
soon as a connection closes. The channel says that some connection has ended, not whose, so every
worker is probed: one that cannot be reached is either dead or about to connect anew, which takes a
live one less than 100 ms. The probes go on until it was reached, or missed ``MISSES`` times in a
row.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Set
from itertools import count

from coordinator.core.requests.lifecycle import Lifecycle
from coordinator.core.settings import HubSettings
from coordinator.core.workers.membership import Membership
from coordinator.core.workers.registry import Registry
from transport.wire.messages import Alive, ToWorker

log = logging.getLogger(__name__)


class HealthMonitor:
    """Checks workers and requests once a heartbeat; ``send`` gives a worker a message."""

    def __init__(
        self,
        registry: Registry,
        lifecycle: Lifecycle,
        membership: Membership,
        send: Callable[[str, ToWorker], bool],
        settings: HubSettings,
    ) -> None:
        self._registry = registry
        self._lifecycle = lifecycle
        self._membership = membership
        self._send = send
        self._settings = settings

    def check(self, lag_s: float, gone: set[str]) -> None:
        """Once a heartbeat, which came ``lag_s`` late; ``gone`` are processes found dead."""
        self._fence_the_dead(lag_s, gone)
        self._refuse_the_useless()
        self._lifecycle.tick()

    def fence_gone(self, gone: set[str]) -> None:
        """Processes were found dead by their connections."""
        for worker in self._registry.all():
            if worker.instance in gone:
                self._membership.fence(worker, "its connection is closed")

    def _fence_the_dead(self, lag_s: float, gone: set[str]) -> None:
        if lag_s > self._settings.heartbeat_s:
            log.warning("the event loop stood still for %.1f s", lag_s)
            self._registry.excuse(lag_s)
        now = time.monotonic()
        for worker in self._registry.silent(now, self._settings.dead_after_s):
            self._membership.fence(worker, f"silent for {now - worker.heard_at:.1f} s")
        self.fence_gone(gone)

    def _refuse_the_useless(self) -> None:
        settled = time.monotonic() - 3 * self._settings.heartbeat_s
        for instance, refused in [
            *self._membership.refuse_stranded(settled),
            *self._membership.refuse_hopeless(),
        ]:
            self._send(instance, refused)


PROBE_EVERY_S = 0.05
MISSES = 4
_MISSED_BEATS = 2


class ConnectionMonitor:
    """``send`` says whether a worker was reached; ``coordinator`` is this process's instance."""

    def __init__(self, send: Callable[[str, ToWorker], bool], coordinator: str) -> None:
        self._send = send
        self._alive = Alive(coordinator)
        self._missed: dict[str, int] = {}

    def reaches(self, instance: str) -> bool:
        """Send one an Alive; whether it is connected."""
        return self._send(instance, self._alive)

    def beat(self, instances: Iterable[str]) -> set[str]:
        """Once a heartbeat: send each an Alive. Returns those that two beats in a row did
        not reach: a dead process's connection closes at once, a live one has reconnected by then.
        """
        self._missed = {
            instance: 0 if self.reaches(instance) else self._missed.get(instance, 0) + 1
            for instance in instances
        }
        return {each for each, missed in self._missed.items() if missed >= _MISSED_BEATS}


class ClosedConnections:
    """Finds workers whose process has ended, as soon as a connection closes. ``reaches`` probes one
    of ``instances``; ``gone`` is called with those that have ended. ``clock`` and ``sleep`` are the
    event loop's."""

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
            # monitor does, so that only the second probe tells that one is reached.
            reached = {i for i, times in missed.items() if times == 0 and number > 0}
            missed = {i: times for i, times in missed.items() if i not in gone | reached}
            if not missed:
                return
            await self._sleep(PROBE_EVERY_S)
            if self._clock() - began > 2 * PROBE_EVERY_S:
                # This loop stood still, and with it the handshakes that it answers.
                missed = dict.fromkeys(missed, 0)
