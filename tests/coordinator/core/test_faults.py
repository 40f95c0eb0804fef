"""Which worker a request's fault is charged to, and which workers get requests then."""

import pytest

from coordinator.core.effects import BreakerMoved
from coordinator.core.request import State
from tests.coordinator.desk import Desk, breaker_of, charged, fail
from transport.wire.messages import Cancel, Decode, Prefill


def give_nan(desk: Desk, number: int, at: str) -> None:
    """So many requests give NaN at a colocated worker, and are computed elsewhere."""
    for _ in range(number):
        request = desk.submit(f"nan-{len(desk.names)}")
        while request.prefill_worker != at:
            desk.begin(request, finish="length")
            request = desk.submit(f"nan-{len(desk.names)}")
        fail(desk, request, "not_finite")
        assert request.prefill_worker != at
        desk.begin(request, finish="length")


def test_nan_is_charged_once_another_worker_gets_further() -> None:
    desk = Desk(("b-1", "b-2"))
    request = desk.submit()
    first = request.prefill_worker
    fail(desk, request, "not_finite")
    assert charged(desk) == []
    assert request.prefill_worker not in ("", first)
    desk.begin(request)
    assert charged(desk) == [(first, "not_finite")]


def test_nan_at_two_workers_is_the_requests_own_and_charged_to_neither() -> None:
    desk = Desk(("b-1", "b-2"))
    for number in range(10):
        request = desk.submit(f"r{number}")
        fail(desk, request, "not_finite")
        fail(desk, request, "not_finite")
        assert (request.state, request.code) == (State.FAILED, "not_finite")
    assert charged(desk) == []
    assert {breaker_of(desk, "b-1"), breaker_of(desk, "b-2")} == {"closed"}


def test_nan_in_the_first_step_after_a_handoff_may_be_either_workers() -> None:
    desk = Desk()
    request = desk.submit()
    desk.prefill(request)
    desk.land(request)
    workers = {request.prefill_worker, request.decode_worker}
    fail(desk, request, "not_finite")
    assert request.prefill_worker not in workers
    desk.prefill(request)
    assert {instance for instance, _ in charged(desk)} == workers
    assert request.decode_worker not in workers


def test_nan_later_is_the_decode_workers() -> None:
    desk = Desk()
    request = desk.submit()
    desk.prefill(request)
    desk.land(request)
    desk.step(request)
    worker = request.decode_worker
    fail(desk, request, "not_finite")
    desk.prefill(request)
    assert charged(desk) == [(worker, "not_finite")]


def test_a_worker_with_three_faults_gets_one_probe_at_a_time_and_comes_back() -> None:
    desk = Desk(("b-1", "b-2"))
    give_nan(desk, 3, at="b-1")
    assert breaker_of(desk, "b-1") == "open"
    running = [desk.submit(f"r{n}") for n in range(3)]
    assert {r.prefill_worker for r in running} == {"b-2"}
    desk.now += 1.0
    probe, other = desk.submit("probe"), desk.submit("other")
    assert (probe.prefill_worker, breaker_of(desk, "b-1")) == ("b-1", "half-open")
    assert other.prefill_worker == "b-2"
    fail(desk, probe, "not_finite")
    assert breaker_of(desk, "b-1") == "half-open", "until it is known whose fault that was"
    for request in (*running, other):
        desk.begin(request, finish="length")
    desk.begin(probe, finish="length")
    assert breaker_of(desk, "b-1") == "open"
    desk.now += 1.0
    assert desk.submit("soon").prefill_worker == "b-2", "the pause has doubled"
    desk.now += 1.0
    probe = desk.submit("probe again")
    assert probe.prefill_worker == "b-1"
    desk.begin(probe)
    desk.step(probe)
    assert breaker_of(desk, "b-1") == "closed"
    moved = [e.state for e in desk.take_effects() if isinstance(e, BreakerMoved)]
    assert moved == ["open", "half-open", "open", "half-open", "closed"]


def test_a_request_that_has_failed_is_no_probe() -> None:
    desk = Desk(("b-1", "b-2", "b-3"))
    give_nan(desk, 3, at="b-1")
    request = desk.submit()
    desk.now += 1.0
    fail(desk, request, "not_finite")
    assert request.prefill_worker in ("b-2", "b-3")
    assert breaker_of(desk, "b-1") == "open"


def test_the_last_worker_of_a_role_is_never_left_out() -> None:
    desk = Desk(("b-1", "b-2"))
    give_nan(desk, 3, at="b-1")
    desk.life.worker_lost("b-2")
    desk.now += 0.1
    request = desk.submit()
    assert request.prefill_worker == "b-1"
    desk.begin(request)
    desk.step(request)
    assert breaker_of(desk, "b-1") == "closed", "it has shown that it works"
    alone = Desk(("b-1",))
    for number in range(8):
        request = alone.submit(f"r{number}")
        fail(alone, request, "not_finite")
        alone.begin(request, finish="length")
    assert breaker_of(alone, "b-1") == "closed"


def test_the_last_worker_that_can_hold_a_request_gets_it_whatever_its_breaker() -> None:
    desk = Desk(("b-1",))
    desk.join("b-2", num_pages=2)
    for number in range(3):
        request = desk.submit(f"r{number}", length=40)
        assert request.prefill_worker == "b-1"
        fail(desk, request, "not_finite")
        desk.begin(request, finish="length")
    assert breaker_of(desk, "b-1") == "open"
    assert desk.submit("short", length=2).prefill_worker == "b-2"
    assert desk.submit("long", length=40).prefill_worker == "b-1"


def test_a_worker_whose_probes_fail_is_to_be_ended_unless_it_is_the_last() -> None:
    desk = Desk(("b-1", "b-2"))
    give_nan(desk, 3, at="b-1")
    for number in range(5):
        assert desk.registry.hopeless() == []
        desk.now += 100.0
        probe = desk.submit(f"probe {number}")
        assert probe.prefill_worker == "b-1"
        fail(desk, probe, "not_finite")
        desk.begin(probe, finish="length")
    ((worker, why),) = desk.registry.hopeless()
    assert (worker.instance, why) == ("b-1", "5 requests in a row failed as probes")
    desk.registry.require("b-2").draining = True
    assert desk.registry.hopeless() == []


def test_a_request_that_avoids_a_worker_holds_up_no_others_there() -> None:
    desk = Desk(("b-1", "b-2"))
    first = desk.submit("first")
    at = first.prefill_worker
    other = ({"b-1", "b-2"} - {at}).pop()
    filling = []
    while sum(r.prefill_worker == other for r in filling) < 4:
        filling.append(desk.submit(f"f{len(filling)}"))
    fail(desk, first, "not_finite")
    assert first.state is State.QUEUED, "the only other one is full"
    behind = desk.submit("behind")
    assert behind.prefill_worker == at
    desk.begin(next(r for r in filling if r.prefill_worker == other), finish="length")
    assert first.prefill_worker == other


@pytest.mark.parametrize("code", ["preempted", "draining", "offer_expired"])
def test_want_of_memory_and_planned_ends_are_no_faults(code: str) -> None:
    desk = Desk(("b-1", "b-2"))
    for number in range(5):
        request = desk.submit(f"r{number}")
        fail(desk, request, code)
        desk.begin(request, finish="length")
    assert charged(desk) == []


def test_a_lost_order_is_charged() -> None:
    desk = Desk()
    request = desk.submit()
    worker = desk.registry.require(request.prefill_worker)
    for _ in range(3):
        desk.now += 10.0
        desk.life.reconcile(worker, set(), heartbeat_s=1.0)
    assert charged(desk) == [(worker.instance, "lost_at_worker")]


def test_a_retry_goes_to_a_worker_that_the_request_has_not_failed_at_and_waits_for_it() -> None:
    desk = Desk(("p-1", "d-1", "d-2"))
    request = desk.submit()
    desk.prefill(request)
    first = request.decode_worker
    desk.sent()
    fail(desk, request, "digest_mismatch")
    desk.prefill(request)
    assert request.decode_worker not in ("", first)
    assert {type(message) for _, message in desk.sent()} == {Cancel, Prefill, Decode}
    fail(desk, request, "digest_mismatch")
    assert (request.state, request.code) == (State.FAILED, "digest_mismatch")
