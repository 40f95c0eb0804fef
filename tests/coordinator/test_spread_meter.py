"""What workers count in spread groups, as metrics."""

from unittest.mock import Mock

from coordinator.core.hub import Hub
from coordinator.core.observer import Observer
from coordinator.core.placement import PlacementLimits
from coordinator.core.spread_meter import SpreadMeter
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


def test_heartbeats_become_metrics_and_a_worker_that_leaves_takes_its_own_along() -> None:
    channel, metrics = Mock(), Metrics("m")
    observer = Observer(metrics, Mock(dropped=0, connected=True, damage=Damage()), "c1")
    hub = Hub(channel, observer, "c1", FAST, PlacementLimits())
    for name in ("b-1", "b-2"):
        spread = SpreadExport(f"record-{name}", ExchangeExport("shm", name, 1))
        hello = Hello(name, "colocated", "m", "cpu", 1, 128, 8, EXPORT, spread=spread)
        hub._inbox.handle(name, hello)
    groups = [c.args for c in channel.send.call_args_list if isinstance(c.args[1], SpreadGroup)]
    assert [(to, len(group.members)) for to, group in groups] == [("b-1", 2), ("b-2", 2)]

    def beat(*counts: int, late: tuple[tuple[str, int], ...]) -> None:
        spread = SpreadCounts(2, *counts, late=late)
        hub._inbox.handle("b-1", Heartbeat(WorkerGauges(1, 1, spread=spread)))

    beat(100, 1, 50, late=(("b-2", 1),))  # counted for another coordinator, maybe
    beat(160, 3, 1550, late=(("b-2", 4), ("nobody", 7)))
    mine = {"instance": "b-1", "role": "colocated"}

    def value(name: str, labels: dict[str, str]) -> float | None:
        return metrics.registry.get_sample_value(f"baton_spread_{name}", labels)

    assert value("members", mine) == 2
    assert value("steps_total", mine) == 60
    assert value("steps_aborted_total", mine) == 2
    assert value("wait_seconds_total", mine) == 1.5
    assert value("late_total", {"member": "b-2"}) == 3
    assert value("late_total", {"member": "nobody"}) is None
    hub._inbox.handle("b-2", Goodbye())
    assert value("late_total", {"member": "b-2"}) is None
    to, last = channel.send.call_args_list[-1].args
    assert (to, last.members) == ("b-1", ())
    hub._inbox.handle("b-1", Goodbye())
    assert value("steps_total", mine) is None
