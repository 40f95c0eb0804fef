"""Silence and waiting are limited, the length of an answer is not; by a clock the test turns."""

import pytest

from coordinator.core.request import State
from coordinator.core.settings import HubSettings
from tests.coordinator.desk import Desk

SETTINGS = HubSettings(silence_timeout_s=300.0, queue_timeout_s=1_800.0)


def turn(desk: Desk, seconds: float) -> None:
    """Heartbeats for so long."""
    until = desk.now + seconds
    while desk.now < until:
        desk.now = min(desk.now + 50.0, until)
        desk.life.tick()


def test_a_long_answer_that_goes_on_outlives_every_limit() -> None:
    desk = Desk(settings=HubSettings())
    request = desk.submit()
    desk.prefill(request)
    desk.land(request)
    for number in range(100_000):
        desk.now += 0.018
        desk.step(request)
        desk.take_effects()
        if number % 1_000 == 0:
            desk.life.tick()
    assert desk.now > 1_900
    assert request.state is State.DECODING


@pytest.mark.parametrize("stage", ["prefill", "pull", "decode"])
def test_a_request_that_is_silent_at_its_worker_fails(stage: str) -> None:
    desk = Desk(settings=SETTINGS)
    request = desk.submit()
    if stage != "prefill":
        turn(desk, 200.0)
        desk.prefill(request)
    if stage == "decode":
        turn(desk, 200.0)
        desk.land(request)
        turn(desk, 200.0)
        desk.step(request)
    turn(desk, 299.0)
    assert not request.state.terminal
    turn(desk, 1.0)
    assert (request.state, request.code) == (State.FAILED, "timeout")
    assert request.message == "no progress for 300 s"


def test_waiting_for_a_worker_is_not_silence_and_has_a_limit_of_its_own() -> None:
    desk = Desk((), settings=SETTINGS)
    request = desk.submit()
    turn(desk, 1_799.0)
    assert request.state is State.QUEUED
    desk.join("b-1")
    assert request.state is State.PREFILLING
    turn(desk, 299.0)
    desk.begin(request)
    assert request.state is State.DECODING
    desk.life.worker_lost("b-1")
    turn(desk, 1_799.0)
    assert request.state is State.QUEUED, "it has waited for so long since it was queued anew"
    turn(desk, 1.0)
    assert (request.state, request.code) == (State.FAILED, "queue_timeout")
    assert request.message == "waited for a worker for 1800 s"


@pytest.mark.parametrize("lost", ["b-1", "d-1"])
def test_the_wait_for_another_worker_begins_when_the_first_one_is_lost(lost: str) -> None:
    settings = HubSettings(silence_timeout_s=300.0, queue_timeout_s=10.0)
    desk = Desk(("b-1",) if lost == "b-1" else ("p-1", "d-1"), settings=settings)
    request = desk.submit()
    if lost == "d-1":
        desk.prefill(request)
        assert request.decode_worker == lost
    turn(desk, 200.0)
    desk.now += 5.0
    desk.life.worker_lost(lost)
    turn(desk, 9.0)
    assert not request.state.terminal
    turn(desk, 1.0)
    assert (request.state, request.code) == (State.FAILED, "queue_timeout")


def test_a_handoff_without_a_decode_worker_waits_too() -> None:
    desk = Desk(("p-1",), settings=SETTINGS)
    request = desk.submit()
    desk.prefill(request)
    turn(desk, 1_000.0)
    assert request.state is State.HANDOFF


def test_a_total_limit_holds_when_it_is_set() -> None:
    desk = Desk(("b-1",), settings=HubSettings(request_timeout_s=100.0))
    request = desk.submit()
    desk.begin(request)
    for _ in range(99):
        turn(desk, 1.0)
        desk.step(request)
    assert request.state is State.DECODING
    turn(desk, 1.0)
    assert (request.code, request.message) == ("timeout", "not done after 100 s")


def test_of_requests_that_are_over_little_is_kept() -> None:
    desk = Desk(("b-1",))
    for number in range(5_000):
        desk.begin(desk.submit(f"r{number}"), finish="stop")
    assert len(desk.life._overdue) <= 1_100


@pytest.mark.parametrize(
    "setting",
    ["heartbeat_s", "dead_after_s", "silence_timeout_s", "queue_timeout_s", "request_timeout_s"],
)
@pytest.mark.parametrize("value", [-1.0, float("nan")])
def test_a_limit_that_makes_no_sense_is_named(setting: str, value: float) -> None:
    with pytest.raises(ValueError, match=setting):
        HubSettings(**{setting: value})
