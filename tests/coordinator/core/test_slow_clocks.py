"""GPUs whose clock is low drag the others of their group."""

import logging

import pytest

from coordinator.core.spread.members import FIRST_OUT_S, FOR_S, SLOW, SlowClocks
from tests.coordinator.core.test_spread_groups import Desk
from transport.wire.reports import GpuHealth
from transport.wire.spread import SpreadCounts


def test_a_member_is_slow_beside_the_others_and_for_a_while() -> None:
    clocks, members = SlowClocks(), {"a": 1980.0, "b": 1965.0 * SLOW - 1, "c": 1965.0}
    assert clocks.note(members, 0.0) == []
    assert clocks.note(members, FOR_S - 1) == []
    assert clocks.note(members, FOR_S) == ["b"]
    assert clocks.note(members, FOR_S + 1) == [], "it is told once"


def test_what_was_seen_in_a_group_that_has_ended_is_forgotten() -> None:
    clocks, slow = SlowClocks(), {"a": 1980.0, "b": 1000.0, "c": 1000.0, "d": 1980.0, "e": 1980.0}
    assert clocks.note(slow, 0.0) == []
    clocks.forget(["a", "b"])
    assert clocks.note(slow, FOR_S) == ["c"], "of another group"


@pytest.mark.parametrize(
    "between",
    [
        {"a": 1980.0, "b": 1900.0, "c": 1965.0},
        {"a": 1400.0, "b": 1400.0, "c": 1400.0},
        {"a": None, "b": 1000.0, "c": 1965.0},
    ],
    ids=["fast again", "all are", "one computes none"],
)
def test_what_is_slow_for_moments_stays(between: dict[str, float | None]) -> None:
    clocks, slow = SlowClocks(), {"a": 1980.0, "b": 1000.0, "c": 1965.0}
    assert clocks.note(slow, 0.0) == []
    assert clocks.note(between, FOR_S - 1) == []
    assert clocks.note(slow, FOR_S) == []


def test_the_group_goes_on_without_it(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk()
    workers = [desk.add(name, gpu=f"GPU-{name}") for name in ("a", "b", "c")]
    desk.told()

    def beats(num_steps: int) -> None:
        for worker, mhz in zip(workers, (1980.0, 1200.0, 1980.0), strict=True):
            worker.gpu = GpuHealth(sm_clock_mhz=mhz)
            worker.spread.note(SpreadCounts(num_steps=num_steps), desk.now)
        with caplog.at_level(logging.WARNING):
            desk.groups.take_counts(workers[0])
        desk.groups.update()

    for num_steps in (0, 100, 200):
        beats(num_steps)
        desk.now += FOR_S
        if num_steps == 100:
            for name in ("a", "c"):
                desk.add(f"{name}-2", gpu=f"GPU-{name}")
            assert desk.told().keys() == {"a-2", "c-2"}, "another group says nothing of this one"
    assert desk.told()["a"][1] == ("a", "c")
    assert "b is left out of spread steps for a while: its GPU runs at 1200 MHz" in caplog.text
    status = desk.groups.status(workers[1])
    assert status is not None
    assert (status.mode, status.left_out_s) == ("left out", FIRST_OUT_S - FOR_S)
