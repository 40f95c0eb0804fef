"""What workers count in spread groups, as metrics."""

from unittest.mock import Mock

import pytest

from coordinator.core.contract import SpreadStatus
from coordinator.core.hub import Hub
from coordinator.core.observer import Observer
from coordinator.core.settings import PlacementLimits
from coordinator.core.spread.members import MAX_LATE, spread_status
from coordinator.core.workers.meters import SpreadMeter
from coordinator.record.redis_link import Damage
from telemetry.metrics import Metrics
from tests.coordinator.site import EXPORT, FAST
from transport.wire.messages import Goodbye, Heartbeat, Hello
from transport.wire.reports import WorkerGauges
from transport.wire.spread import ExchangeExport, SpreadCounts, SpreadExport, SpreadGroup


def test_counts_that_fall_are_no_growth() -> None:
    meter = SpreadMeter()
    meter.note(SpreadCounts(3, 10, 2, 5, (("a", 4),)), 0.0)
    meter.note(SpreadCounts(2, 4, 1, 1, (("a", 1), ("b", 2))), 1.0)
    assert meter.growth == SpreadCounts(2, late=(("b", 2),))


def test_a_status_tells_of_the_last_minute() -> None:
    meter = SpreadMeter()
    meter.note(SpreadCounts(num_steps=1000, num_local=1000), 0.0)
    now = SpreadCounts(
        2, 1300, 1, late=(("b", 1),), num_local=1100, spread_ms=1800, local_ms=900,
        waits_ms=(("b", 60),), within_us=(("b", 30_000),), saved_us=150_000,
        table="measured here",
    )  # fmt: skip
    meter.note(now, 60.0)
    assert spread_status(meter, ("a", "b"), 0.0) == SpreadStatus(
        mode="spread", members=("a", "b"), share=0.75, step_ms=6.0, local_step_ms=9.0, aborted=1,
        wait_ms={"b": 0.2}, within_ms={"b": 0.1}, saved_ms=0.5, late={"b": 1}, left_out_s=0.0,
        table="measured here",
    )  # fmt: skip
    meter.note(now, 61.0)
    assert spread_status(meter, ("a", "b"), 0.0).mode == "local", "no steps since the last beat"
    meter.note(now, 121.0)
    nothing = spread_status(meter, (), 30.0)
    assert (nothing.mode, nothing.share, nothing.step_ms) == ("left out", None, None)
    assert spread_status(meter, (), 0.0).mode == "alone"


def hub_of_two(channel: Mock, metrics: Metrics) -> Hub:
    """With the workers b-1 and b-2, which form a group."""
    observer = Observer(
        metrics, Mock(num_unwritten=0, dropped=0, connected=True, damage=Damage()), "c1"
    )
    hub = Hub(channel, observer, "c1", FAST, PlacementLimits())
    for name in ("b-1", "b-2"):
        spread = SpreadExport(f"record-{name}", ExchangeExport("shm", name, 1))
        hello = Hello(name, "colocated", "m", "cpu", 1, 128, 8, EXPORT, spread=spread)
        hub._inbox.handle(name, hello)
    return hub


def test_a_member_that_is_left_out_is_named_among_the_problems() -> None:
    metrics = Metrics("m")
    hub = hub_of_two(Mock(), metrics)
    for times_late in (0, MAX_LATE):
        assert hub.status().problems == ()
        spread = SpreadCounts(2, late=(("b-2", times_late),))
        hub._inbox.handle("b-1", Heartbeat(WorkerGauges(1, 1, spread=spread)))
    hub._beat(0.0)
    assert hub.status().ready
    (problem,) = hub.status().problems
    assert problem == "b-2 slows the others down: they compute their steps without it"
    labels = {"instance": "b-2", "role": "colocated"}
    assert metrics.registry.get_sample_value("baton_spread_left_out", labels) == 1


def test_heartbeats_become_metrics_and_a_worker_that_leaves_takes_its_own_along() -> None:
    channel, metrics = Mock(), Metrics("m")
    hub = hub_of_two(channel, metrics)
    groups = [c.args for c in channel.send.call_args_list if isinstance(c.args[1], SpreadGroup)]
    assert [(to, len(group.members)) for to, group in groups] == [("b-1", 2), ("b-2", 2)]

    def beat(*counts: int, late: tuple[tuple[str, int], ...]) -> None:
        within = tuple((name, 500 * times) for name, times in late[:1])
        spread = SpreadCounts(
            2, *counts, late=late, waits_ms=late, within_us=within, saved_us=counts[0],
            table="shipped" if counts[0] == 100 else "measured here",
        )  # fmt: skip
        hub._inbox.handle("b-1", Heartbeat(WorkerGauges(1, 1, spread=spread)))

    beat(100, 1, 50, late=(("b-2", 1),))  # counted for another coordinator, maybe
    beat(160, 3, 1550, late=(("b-2", 4), ("nobody", 7)))
    mine = {"instance": "b-1", "role": "colocated"}

    def value(name: str, labels: dict[str, str]) -> float | None:
        return metrics.registry.get_sample_value(f"baton_spread_{name}", labels)

    assert value("members", mine) == 2
    assert value("table_info", mine | {"table": "measured here"}) == 1
    assert value("table_info", mine | {"table": "shipped"}) is None, "it was before"
    assert value("steps_total", mine) == 60
    assert value("aborts_total", mine) == 2
    assert value("wait_seconds_total", mine) == 1.5
    assert value("late_total", {"member": "b-2"}) == 3
    assert value("peer_wait_seconds_total", mine | {"member": "b-2"}) == 0.003
    assert value("peer_wait_seconds_total", mine | {"member": "nobody"}) is None
    assert value("device_wait_seconds_total", mine | {"member": "b-2"}) == 0.0015
    assert value("saved_seconds_total", mine) == pytest.approx(60e-6)
    first, second = (worker.spread for worker in hub.status().workers)
    assert (first.mode, first.members) == ("spread", ("b-1", "b-2"))
    assert (second.mode, second.share) == ("local", None)
    hub._beat(0.0)
    assert value("left_out", mine) == 0
    assert value("late_total", {"member": "nobody"}) is None
    hub._inbox.handle("b-2", Goodbye())
    assert value("late_total", {"member": "b-2"}) is None
    for name in ("peer_wait_seconds_total", "device_wait_seconds_total"):
        assert value(name, mine | {"member": "b-2"}) is None
    to, last = channel.send.call_args_list[-1].args
    assert (to, last.members) == ("b-1", ())
    hub._inbox.handle("b-1", Goodbye())
    assert value("steps_total", mine) is None
