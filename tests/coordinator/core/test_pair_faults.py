"""Faults of a prefill and a decode worker together."""

from coordinator.core.request import State
from tests.coordinator.desk import Desk, breaker_of, charged, compute, fail
from transport.wire.messages import Failed


def test_copies_that_do_not_end_are_pulled_elsewhere_and_open_the_one_breaker() -> None:
    desk = Desk(("p-1", "p-2", "d-1", "d-2", "d-3"))
    num_stuck, prefills = 0, 0
    for number in range(20):
        request = desk.submit(f"r{number}")
        desk.prefill(request)
        if request.decode_worker == "d-1":
            num_stuck += 1
            fail(desk, request, "pull_timeout")
            assert request.decode_worker in ("d-2", "d-3"), "the same offer"
        compute(desk, request)
        assert request.state is State.FINISHED
        prefills += request.attempt
    assert (num_stuck, prefills) == (4, 20), "with both of its partners"
    assert [breaker_of(desk, d) for d in ("d-1", "d-2", "d-3")] == ["open", "closed", "closed"]
    assert [breaker_of(desk, p) for p in ("p-1", "p-2")] == ["closed", "closed"]


def test_a_prefill_worker_that_no_decode_worker_can_pull_from_is_left_out() -> None:
    desk = Desk(("p-1", "p-2", "d-1", "d-2", "d-3"))
    for number in range(30):
        request = desk.submit(f"r{number}")
        desk.prefill(request)
        if request.prefill_worker == "p-1":
            fail(desk, request, "digest_mismatch")
            assert request.prefill_worker == "p-2"
            desk.prefill(request)
        compute(desk, request)
    assert breaker_of(desk, "p-1") == "open"
    assert {breaker_of(desk, d) for d in ("d-1", "d-2", "d-3")} == {"closed"}


def test_a_pair_that_fails_is_left_out_alone() -> None:
    desk = Desk()
    tried = 0
    for number in range(40):
        request = desk.submit(f"r{number}")
        desk.prefill(request)
        if (request.prefill_worker, request.decode_worker) == ("p-1", "d-1"):
            tried += 1
            fail(desk, request, "digest_mismatch")
            desk.prefill(request)
        compute(desk, request)
    assert tried == 3
    assert {breaker_of(desk, each) for each in ("p-1", "p-2", "d-1", "d-2")} == {"closed"}


def test_a_decode_worker_that_lets_a_copy_wait_gets_no_others() -> None:
    desk = Desk(("p-1", "d-1", "d-2"))
    request = desk.submit()
    desk.prefill(request)
    slow = request.decode_worker
    desk.now += 3.0
    others = []
    for number in range(4):
        others.append(desk.submit(f"r{number}"))
        desk.prefill(others[-1])
        assert others[-1].decode_worker not in ("", slow)
        desk.land(others[-1])
    waiting = desk.submit("waiting")
    desk.prefill(waiting)
    assert waiting.decode_worker == "", "the other one is full"
    desk.land(request)
    assert waiting.decode_worker == slow


def test_an_offer_that_expired_is_no_fault_whichever_worker_tells_first() -> None:
    for prefill_first in (True, False):
        desk = Desk(("p-1", "d-1", "d-2"))
        for number in range(6):
            request = desk.submit(f"r{number}")
            desk.prefill(request)
            prefill, decode = request.prefill_worker, request.decode_worker
            expired = Failed(request.request_id, 1, "offer_expired", "late", True)
            stale = Failed(request.request_id, 1, "stale_offer", "changed hands", True)
            told = [(prefill, expired), (decode, stale)]
            for instance, message in told if prefill_first else reversed(told):
                desk.life.failed(instance, message)
            desk.prefill(request)
            compute(desk, request)
        assert charged(desk) == []


def test_stale_offers_of_an_offer_that_stands_are_charged() -> None:
    desk = Desk(("p-1", "d-1", "d-2"))
    request = desk.submit()
    desk.prefill(request)
    workers = {request.prefill_worker, request.decode_worker}
    fail(desk, request, "stale_offer")
    desk.prefill(request)
    assert {instance for instance, _ in charged(desk)} == workers
