"""Requests that may be what ends their workers are tried alone, and no other pays for it."""

import pytest

from coordinator.core.request import Request, State
from coordinator.core.settings import RetryLimits
from tests.coordinator.desk import Desk
from transport.wire.messages import Cancel, Generate


def aboard(desk: Desk, instance: str) -> list[str]:
    return sorted(desk.registry.require(instance).load.requests)


def die(desk: Desk, request: Request, joins: str) -> None:
    """The request's worker dies, and a new one takes its place."""
    desk.life.worker_lost(request.decode_worker or request.prefill_worker)
    desk.join(joins)


def test_a_request_that_was_aboard_two_deaths_is_tried_alone_and_fails_with_the_third() -> None:
    desk = Desk(("b-1", "b-2"))
    poison = desk.submit("poison")
    die(desk, poison, "b-3")
    die(desk, poison, "b-4")
    assert poison.quarantined
    at = poison.prefill_worker
    assert aboard(desk, at) == ["poison"]
    others = [desk.submit(f"r{n}") for n in range(6)]
    assert aboard(desk, at) == ["poison"], "nothing is placed with it"
    assert sum(r.state is State.PREFILLING for r in others) == 4
    desk.life.worker_lost(at)
    assert (poison.state, poison.code) == (State.FAILED, "poison_request")
    assert "3 colocated workers died" in poison.message
    assert [r.losses for r in others] == [0] * 6


def test_neighbours_keep_their_attempts_and_are_released_one_after_the_other() -> None:
    desk = Desk(("b-1",), retries=RetryLimits(pass_len=2))
    first, second = desk.submit("first"), desk.submit("second")
    die(desk, first, "b-2")
    assert {first.prefill_worker, second.prefill_worker} == {"b-2"}
    die(desk, first, "b-3")
    assert aboard(desk, "b-3") == ["first"]
    assert (second.quarantined, second.state) == (True, State.QUEUED)
    desk.begin(first)
    assert aboard(desk, "b-3") == ["first"]
    desk.step(first)
    assert not first.quarantined
    assert aboard(desk, "b-3") == ["first"], "it may have others now, but none in quarantine"
    desk.step(first, finish="length")
    assert aboard(desk, "b-3") == ["second"]
    desk.begin(second)
    desk.step(second)
    assert (first.faults, second.faults, second.quarantined) == (0, 0, False)
    assert desk.registry.require("b-3").reserved_for is None


def test_a_quarantined_request_waits_until_its_worker_has_finished_and_then_others_are_moved() -> (
    None
):
    desk = Desk(("b-1", "b-2"), retries=RetryLimits(wait_s=30.0))
    suspect = desk.submit("suspect")
    at = suspect.prefill_worker
    busy = [desk.submit(f"r{n}") for n in range(3)]
    suspect.quarantined, suspect.deaths, suspect.died_at_len = True, 2, suspect.num_tokens
    desk.life.worker_lost(at, "goodbye")
    (left,) = desk.registry.all()
    assert (suspect.state, left.reserved_for) == (State.QUEUED, suspect)
    new = desk.submit("new")
    assert new.state is State.QUEUED, "the only worker is reserved"
    desk.now += 29.0
    desk.life.tick()
    assert suspect.state is State.QUEUED
    desk.sent()
    desk.now += 1.0
    desk.life.tick()
    told = [type(message) for _, message in desk.sent()]
    assert told == [Cancel] * 2 + [Generate]
    assert aboard(desk, left.instance) == ["suspect"]
    assert {(r.state, r.faults) for r in busy} == {(State.QUEUED, 0)}
    desk.begin(suspect, finish="stop")
    assert {r.state for r in [*busy, new]} == {State.PREFILLING}
    assert left.reserved_for is None


def test_an_empty_worker_that_joins_takes_the_trial_over() -> None:
    desk = Desk(("b-1", "b-2"))
    suspect = desk.submit("suspect")
    at = suspect.prefill_worker
    for number in range(3):
        desk.submit(f"r{number}")
    suspect.quarantined, suspect.deaths, suspect.died_at_len = True, 2, suspect.num_tokens
    desk.life.worker_lost(at, "goodbye")
    (busy,) = desk.registry.all()
    assert busy.reserved_for is suspect
    desk.join("b-3")
    assert suspect.prefill_worker == "b-3"
    assert busy.reserved_for is None


def test_a_quarantined_request_is_alone_at_prefill_and_at_decode_and_an_offer_does_not_count() -> (
    None
):
    desk = Desk(("p-1", "p-2", "d-1", "d-2"))
    waiting = desk.submit("waiting")
    desk.prefill(waiting)
    suspect = desk.submit("suspect")
    for joins in ("p-3", "p-4"):
        die(desk, suspect, joins)
    assert suspect.quarantined
    at = desk.registry.require(suspect.prefill_worker)
    assert at.reserved_for is suspect
    others = [desk.submit(f"r{n}") for n in range(2)]
    assert at.instance not in {r.prefill_worker for r in others}
    desk.prefill(suspect)
    assert at.reserved_for is None
    decode = desk.registry.require(suspect.decode_worker)
    assert list(decode.load.requests) == ["suspect"]
    for other in others:
        desk.prefill(other)
        assert other.decode_worker not in ("", decode.instance)


def test_planned_departures_quarantine_no_request() -> None:
    desk = Desk(("b-1", "b-2"))
    request = desk.submit()
    for number in range(3, 8):
        desk.life.worker_lost(request.prefill_worker, "goodbye")
        desk.join(f"b-{number}")
    assert (request.quarantined, request.faults, request.losses) == (False, 0, 5)


def test_a_request_that_lost_very_many_workers_is_given_up() -> None:
    desk = Desk(("b-1", "b-2"), retries=RetryLimits(pass_len=1, max_losses=3))
    request = desk.submit()
    for number in range(3, 7):
        desk.begin(request)
        die(desk, request, f"b-{number}")
    assert (request.state, request.code) == (State.FAILED, "worker_lost")
    assert request.message == "gave up after 4 workers were lost"


@pytest.mark.parametrize(
    ("setting", "value"),
    [("num_deaths", 0), ("pass_len", 0), ("max_losses", 0), ("wait_s", -1.0)],
)
def test_a_limit_that_makes_no_sense_is_named(setting: str, value: float) -> None:
    with pytest.raises(ValueError, match=setting):
        RetryLimits(**{setting: value})


def test_workers_that_are_heard_again_had_not_died_of_their_request() -> None:
    """Only their connections were lost."""
    desk = Desk(("b-1", "b-2"))
    request = desk.submit()
    for number in range(3, 9):
        lost = request.prefill_worker
        die(desk, request, f"b-{number}")
        assert request.state is not State.FAILED
        desk.life.worker_returned(lost)
        assert (request.quarantined, request.deaths) == (False, 0)


def test_a_quarantined_request_queues_with_the_others_once_its_workers_are_heard_again() -> None:
    desk = Desk(("b-1", "b-2"))
    suspect = desk.submit("suspect")
    first = suspect.prefill_worker
    desk.life.worker_lost(first)
    desk.life.worker_lost(suspect.prefill_worker)
    assert suspect.quarantined
    later = desk.submit("later")
    desk.life.worker_returned(first)
    assert not suspect.quarantined
    desk.join("b-3")
    assert suspect.prefill_worker == later.prefill_worker == "b-3"
