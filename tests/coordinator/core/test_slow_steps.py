"""Members of spread groups that are waited for longer than they are worth."""

import logging
from collections.abc import Mapping
from random import Random

import pytest

from coordinator.core.spread.members import FOR_S, Cost, Shared, SlowSteps, costs
from tests.coordinator.core.test_spread_groups import Desk
from transport.wire.reports import WorkerGauges
from transport.wire.spread import SpreadCounts

STEPS = 100


def group(
    speeds: Mapping[str, float],
    saved_ms: float,
    running: Mapping[str, int] | None = None,
    exchange_ms: float = 0.3,
) -> dict[str, Shared | None]:
    """Members that need so many ms for their part of a step: each waits for the slower ones, and
    for all as long as an exchange takes."""
    return {
        name: Shared(
            STEPS, (running or {}).get(name, 16),
            {
                other: round(1e3 * STEPS * (exchange_ms + max(0.0, theirs - own)))
                for other, theirs in speeds.items()
                if other != name
            },
            round(1e3 * STEPS * saved_ms),
        )
        for name, own in speeds.items()
    }  # fmt: skip


def names(slow: list[Cost]) -> list[str]:
    return [cost.member for cost in slow]


def test_what_is_waited_for_one_member_alone_is_its_cost() -> None:
    found = costs(group({"a": 5.0, "b": 5.0, "c": 7.0}, saved_ms=1.5))
    by_name = {cost.member: cost for cost in found}
    assert by_name["c"].waited_ms == pytest.approx(2.0)
    assert by_name["a"].waited_ms == by_name["b"].waited_ms == 0.0
    assert {cost.saved_ms for cost in found} == {1.5}


def test_a_member_is_put_out_when_it_has_cost_more_than_it_gives_for_a_while() -> None:
    steps, drags = SlowSteps(), group({"a": 5.0, "b": 5.1, "c": 7.0}, saved_ms=1.5)
    assert steps.note(drags, 0.0) == steps.note(drags, FOR_S - 1) == []
    assert names(steps.note(drags, FOR_S)) == ["c"]
    assert steps.note(drags, FOR_S + 1) == [], "it is told once"
    assert steps.note(group({"a": 5.0, "b": 5.1, "c": 6.4}, 1.5), 50.0) == []
    assert steps.note(drags, 51.0) == []
    assert steps.note(group({"a": 5.0, "b": 5.1, "c": 6.4}, 1.5), 52.0) == []
    assert steps.note(drags, 51.0 + FOR_S) == [], "it gave more than it cost in between"
    steps.forget(["c"])
    assert steps.note(drags, 52.0 + FOR_S) == []


def test_of_two_the_slower_one_is_named() -> None:
    steps, drags = SlowSteps(), group({"a": 8.0, "b": 5.0}, saved_ms=1.0)
    assert steps.note(drags, 0.0) == []
    assert names(steps.note(drags, FOR_S)) == ["a"]


def test_a_member_with_more_sequences_is_later_for_that() -> None:
    drags = group({"a": 5.0, "b": 5.0, "c": 9.0}, 1.0, running={"a": 8, "b": 8, "c": 40})
    assert "c" not in names(costs(drags))


def test_nothing_is_said_while_a_member_computes_no_spread_steps() -> None:
    drags = group({"a": 5.0, "b": 9.0}, saved_ms=1.0)
    assert costs(drags | {"a": Shared(0, 16, {}, 0)}) == []


def test_a_lender_that_is_slow_is_put_out_too() -> None:
    members = group({"a": 5.0, "b": 5.0, "lender": 7.0}, saved_ms=1.0) | {"lender": None}
    steps = SlowSteps()
    assert steps.note(members, 0.0) == []
    assert names(steps.note(members, FOR_S)) == ["lender"]


def test_over_many_heartbeats_only_the_slow_one_is_ever_put_out() -> None:
    """Parts of a step that vary, and members whose GPU is held up now and then."""
    for seed in range(20):
        draw, steps, put_out = Random(seed), SlowSteps(), set[str]()
        slow = draw.choice([None, "c"])
        for beat in range(400):
            speeds = {name: draw.gauss(5.0, 0.3) for name in "abcd"}
            held_up = draw.choice("abcd")
            speeds[held_up] += 4.0 * (draw.random() < 0.2)
            if slow is not None:
                speeds[slow] += 3.5
            put_out |= set(names(steps.note(group(speeds, saved_ms=1.0), beat * 0.5)))
        assert put_out == ({slow} if slow else set())


def test_the_group_goes_on_without_it(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk()
    workers = [desk.add(name, gpu=f"GPU-{name}") for name in ("a", "b", "c")]
    desk.told()
    for num_steps in (0, 100, 200, 300):
        for worker in workers:
            others = [w.instance for w in workers if w is not worker]
            within = tuple((n, num_steps * (5_000 if n == "b" else 300)) for n in others)
            counts = SpreadCounts(num_steps=num_steps, within_us=within, saved_us=500 * num_steps)
            worker.gauges = WorkerGauges(1, 1, running=8, spread=counts)
            worker.spread.note(counts, desk.now)
        with caplog.at_level(logging.WARNING):
            desk.groups.take_counts(workers[0])
        desk.groups.update()
        desk.now += FOR_S
    assert "b is left out of spread steps for a while" in caplog.text
    assert "wait 4.70 ms for it, and save 0.50 ms by it" in caplog.text
    status = desk.groups.status(workers[1])
    assert status is not None
    assert status.mode == "left out"
