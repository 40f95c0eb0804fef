"""Whose connection has ended for good, by probes on a clock of the test's."""

import asyncio

from coordinator.core.workers.connections import (
    MISSES,
    PROBE_EVERY_S,
    ClosedConnections,
    ConnectionMonitor,
)
from transport.wire.messages import Alive, ToWorker


class Workers:
    """``absent``: at how many probes to come each cannot be reached."""

    def __init__(self, **absent: float) -> None:
        self.absent = absent
        self.now = 0.0
        self.stall_s = 0.0
        self.gone: list[tuple[set[str], float]] = []
        self.probed: list[str] = []
        self.done = asyncio.Event()
        self.closed = ClosedConnections(
            self._reaches,
            lambda: set(self.absent),
            lambda gone: self.gone.append((gone, self.now)),
            clock=lambda: self.now,
            sleep=self._sleep,
        )

    def _reaches(self, instance: str) -> bool:
        self.probed.append(instance)
        self.absent[instance] -= 1
        return self.absent[instance] < 0

    async def _sleep(self, seconds: float) -> None:
        self.now += seconds + self.stall_s
        self.stall_s = 0.0
        await asyncio.sleep(0)

    async def probe(self) -> "Workers":
        self.closed.one_ended()
        watching = asyncio.create_task(self.closed.watch())
        for _ in range(100):
            await asyncio.sleep(0)
        watching.cancel()
        return self


async def test_a_dead_process_is_found_within_200_ms() -> None:
    workers = await Workers(p=0, d=float("inf")).probe()
    assert workers.gone == [({"d"}, (MISSES - 1) * PROBE_EVERY_S)]
    assert workers.probed.count("p") == 2


async def test_one_that_connects_anew_is_alive() -> None:
    workers = await Workers(p=MISSES - 1, d=0).probe()
    assert workers.gone == []


async def test_two_that_die_at_once_are_both_found() -> None:
    workers = await Workers(p=float("inf"), d=float("inf"), e=0).probe()
    assert workers.gone[0][0] == {"p", "d"}


async def test_probes_while_this_loop_stood_still_do_not_count() -> None:
    workers = Workers(p=MISSES)
    workers.stall_s = 1.0
    await workers.probe()
    assert workers.gone == []


async def test_nothing_is_probed_before_a_connection_ends() -> None:
    workers = Workers(p=0)
    watching = asyncio.create_task(workers.closed.watch())
    for _ in range(10):
        await asyncio.sleep(0)
    watching.cancel()
    assert workers.probed == []


def test_a_worker_missed_twice_in_a_row_is_gone() -> None:
    closed: set[str] = set()
    said: list[str] = []

    def send(instance: str, message: ToWorker) -> bool:
        assert message == Alive("c1")
        said.append(instance)
        return instance not in closed

    reach = ConnectionMonitor(send, "c1")
    assert reach.beat(["p-1", "d-1"]) == set()
    closed = {"p-1", "d-1"}
    assert reach.beat(["p-1", "d-1"]) == set()
    closed = {"p-1"}
    assert reach.beat(["p-1", "d-1"]) == {"p-1"}
    closed = {"p-1", "d-1"}
    assert reach.beat(["d-1"]) == set()
    assert reach.beat(["d-1", "p-1"]) == {"d-1"}
    assert said == ["p-1", "d-1"] * 3 + ["d-1"] + ["d-1", "p-1"]
