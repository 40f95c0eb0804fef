"""Requests of a draining worker go on elsewhere: who is asked, who takes over, what may fail."""

from math import inf

import pytest

from coordinator.core.effects import HandedOff
from coordinator.core.request import Request, State
from coordinator.core.requests.departures import TOGETHER_S
from coordinator.core.requests.moves import AGAIN_AFTER_S, MAX_AT_ONCE
from coordinator.core.workers.load import HEADROOM_LEN
from tests.coordinator.desk import LAYOUT, Desk, fail, grown
from transport.wire.messages import (
    Cancel,
    Decode,
    Dismissed,
    ExpectHandoff,
    Failed,
    Move,
    Prefill,
    Release,
    Settled,
)
from transport.wire.offers import Offer
from transport.wire.reports import FirstStep

ENOUGH = 2 * LAYOUT.pages_for(HEADROOM_LEN)
"""Free pages with which a worker of two sequences is not short of pages."""
SPLIT, COLOCATED = ("p-1", "d-1", "d-2"), ("b-1", "b-2")


def decoding(desk: Desk, request_id: str = "r") -> Request:
    """A request with two tokens, at a worker that decodes it."""
    request = desk.submit(request_id)
    if request.prefill_worker.startswith("b"):
        desk.begin(request)
    else:
        desk.prefill(request)
        desk.land(request)
    desk.step(request)
    desk.sent()
    return request


def drain(desk: Desk, instance: str) -> list[tuple[str, object]]:
    desk.life.worker_draining(desk.registry.require(instance))
    return desk.sent()


def dismissed(desk: Desk) -> list[str]:
    """The workers that were told since the last time that they may end."""
    return [to for to, message in desk.sent() if isinstance(message, Dismissed)]


def settle(desk: Desk, request: Request) -> list[tuple[str, object]]:
    """Its worker offers it."""
    offer = Offer(request.decode_worker, (0,), 2, 3, request.num_tokens - 1)
    desk.life.settled(request.decode_worker, Settled(request.request_id, request.attempt, offer))
    return desk.sent()


@pytest.mark.parametrize("workers", [SPLIT, COLOCATED], ids=["split", "colocated"])
def test_a_request_moves_and_goes_on_with_its_next_token(workers: tuple[str, ...]) -> None:
    desk = Desk(workers)
    request = decoding(desk)
    source = request.decode_worker
    told, (likely, announced) = drain(desk, source)
    assert (told, announced) == ((source, Move("r", 1)), ExpectHandoff())
    desk.step(request, token=3)  # the step under way
    ((target, order),) = settle(desk, request)
    assert (target, type(order)) == (likely, Decode)
    assert (target != source, order.offer.num_tokens) == (True, request.num_tokens - 1)
    assert request.state is State.HANDOFF
    desk.land(request)
    assert desk.sent() == [(source, Release("r", 1, 3)), (source, Dismissed())]
    desk.step(request, token=4)
    assert list(request.output_ids) == [1, 2, 3, 4]
    assert (request.attempt, request.num_moves, request.faults) == (1, 1, 0)
    assert not desk.registry.require(source).load.requests


def test_a_late_token_of_the_old_worker_is_dropped_and_counted() -> None:
    desk = Desk(SPLIT)
    request = decoding(desk)
    source = request.decode_worker
    drain(desk, source)
    settle(desk, request)
    desk.land(request)
    before = desk.life.stale_dropped
    target, request.decode_worker = request.decode_worker, source
    late = desk.step
    request.decode_worker = target
    desk.life.settled(source, Settled("r", 1, Offer(source, (0,), 2, 3, request.num_tokens - 1)))
    assert desk.life.stale_dropped == before + 1
    late(request, token=3)
    assert list(request.output_ids)[-1] == 3


def test_without_room_elsewhere_it_stays_and_is_not_asked_again_at_once() -> None:
    desk = Desk(SPLIT)
    request = decoding(desk)
    source = request.decode_worker
    drain(desk, source)
    other = next(w for w in desk.registry.taking("decode") if w.instance != source)
    desk.life.worker_lost(other.instance)
    desk.sent()
    ((target, order),) = settle(desk, request)
    assert (target, type(order)) == (source, Decode)
    desk.land(request)
    assert desk.sent() == [], "nothing is released where it stays"
    assert (request.state, request.num_moves) == (State.DECODING, 0)
    assert request.request_id in desk.registry.require(source).load.requests
    desk.join("d-3")
    assert not [m for _, m in desk.sent() if isinstance(m, Move)]
    desk.now += AGAIN_AFTER_S
    desk.life.tick()
    assert desk.sent() == [(source, Move("r", 1)), ("d-3", ExpectHandoff())]


def test_what_has_just_moved_moves_on_at_once_from_a_worker_that_drains() -> None:
    desk = Desk(("p-1", "d-1", "d-2", "d-3"))
    request = decoding(desk)
    drain(desk, request.decode_worker)
    settle(desk, request)
    desk.land(request)
    desk.sent()
    assert drain(desk, request.decode_worker)[0] == (request.decode_worker, Move("r", 1))


def test_a_lone_worker_keeps_its_requests() -> None:
    desk = Desk(("p-1", "d-1"))
    decoding(desk)
    assert drain(desk, "d-1") == []


def test_few_move_at_a_time() -> None:
    desk = Desk(SPLIT)
    requests = [decoding(desk, f"r{i}") for i in range(4)]
    at_source = [r for r in requests if r.decode_worker == "d-1"]
    sent = [to for to, message in drain(desk, "d-1") if isinstance(message, Move)]
    assert len(sent) == min(len(at_source), MAX_AT_ONCE, 2), "as many as the other has room for"


def test_a_target_that_dies_costs_no_token() -> None:
    desk = Desk(("p-1", "d-1", "d-2", "d-3"))
    request = decoding(desk)
    source = request.decode_worker
    drain(desk, source)
    ((target, _),) = settle(desk, request)
    desk.life.worker_lost(target)
    ((another, order),) = desk.orders()
    assert (another not in (source, target), type(order)) == (True, Decode)
    desk.land(request)
    desk.step(request, token=3)
    assert (list(request.output_ids), request.attempt) == ([1, 2, 3], 1)


def test_a_source_that_dies_after_the_offer_is_as_a_lost_worker() -> None:
    desk = Desk(SPLIT)
    request = decoding(desk)
    source = request.decode_worker
    drain(desk, source)
    ((target, _),) = settle(desk, request)
    desk.life.worker_lost(source)
    desk.orders()
    fail(desk, request, "peer_gone")
    ((_, order),) = desk.orders()
    assert (type(order), request.attempt) == (Prefill, 2)
    assert target == "d-1" or target == "d-2"


def test_a_source_that_dies_before_the_offer_is_a_lost_worker() -> None:
    desk = Desk(SPLIT)
    request = decoding(desk)
    drain(desk, request.decode_worker)
    desk.life.worker_lost(request.decode_worker)
    ((_, order),) = desk.orders()
    assert (type(order), request.attempt, request.moving) == (Prefill, 2, False)


def test_an_offer_that_expires_is_computed_again() -> None:
    desk = Desk(SPLIT)
    request = decoding(desk)
    source = request.decode_worker
    drain(desk, source)
    settle(desk, request)
    desk.life.failed(source, Failed("r", 1, "offer_expired", "", True))
    fail(desk, request, "stale_offer")
    ((_, order),) = desk.orders()
    assert (type(order), request.attempt) == (Prefill, 2)


def test_a_cancelled_request_is_dropped_at_both_ends() -> None:
    desk = Desk(SPLIT)
    request = decoding(desk)
    source = request.decode_worker
    drain(desk, source)
    ((target, _),) = settle(desk, request)
    desk.life.cancel(request)
    assert sorted(desk.orders(), key=str) == sorted(
        [(source, Cancel("r", 1)), (target, Cancel("r", 1))], key=str
    )


def test_an_end_before_the_offer_is_an_end() -> None:
    desk = Desk(SPLIT)
    request = decoding(desk)
    drain(desk, request.decode_worker)
    desk.step(request, token=7, finish="stop")
    assert request.state is State.FINISHED
    settle_at = request.decode_worker
    before = desk.life.stale_dropped
    desk.life.settled(settle_at, Settled("r", 1, Offer(settle_at, (0,), 2, 3, 12)))
    assert desk.life.stale_dropped == before + 1


@pytest.mark.parametrize("workers", [SPLIT, COLOCATED], ids=["split", "colocated"])
def test_a_worker_short_of_pages_gives_its_youngest_request_to_one_with_many(
    workers: tuple[str, ...],
) -> None:
    desk = Desk(workers)
    requests = [decoding(desk, f"r{i}") for i in range(4)]
    source = requests[0].decode_worker
    of_source = [r for r in requests if r.decode_worker == source]
    other = next(r.decode_worker for r in requests if r.decode_worker != source)
    for request in requests:
        if request.decode_worker == other:
            desk.step(request, token=7, finish="stop")
    old, young = of_source
    load = desk.registry.require(source).load
    grown(desk, old, load.free_pages - ENOUGH)
    assert desk.sent() == []
    grown(desk, young, 1)
    assert load.is_short_of_pages
    assert desk.sent() == [(source, Move(young.request_id, 1))]
    desk.step(old)
    assert desk.sent() == [], "one at a time"
    ((target, order),) = settle(desk, young)
    assert (target, type(order)) == (other, Decode)
    desk.land(young)
    assert young.move_reason == "memory"
    assert not load.is_short_of_pages


def test_a_worker_short_of_pages_keeps_its_requests_if_no_other_has_many() -> None:
    desk = Desk(COLOCATED)
    requests = [decoding(desk, f"r{i}") for i in range(4)]
    old = [next(r for r in requests if r.decode_worker == instance) for instance in COLOCATED]
    for request in old:
        grown(desk, request, desk.registry.require(request.decode_worker).load.free_pages - ENOUGH)
    for request in old:
        grown(desk, request, 1)
    assert all(desk.registry.require(w).load.is_short_of_pages for w in COLOCATED)
    assert desk.sent() == []
    assert all(request.state is State.DECODING for request in requests)


def test_an_idle_worker_is_dismissed_at_once_while_others_decode() -> None:
    desk = Desk(SPLIT)
    desk.submit()
    desk.sent()
    assert drain(desk, "d-1") == [("d-1", Dismissed())]
    desk.life.tick()
    assert dismissed(desk) == [], "once"


@pytest.mark.parametrize("prefill_first", [True, False])
def test_the_last_worker_that_decodes_stays_for_a_prompt_whose_worker_drains_too(
    prefill_first: bool,
) -> None:
    desk = Desk(("p-1", "d-1"))
    request = desk.submit()
    desk.sent()
    for instance in ("p-1", "d-1") if prefill_first else ("d-1", "p-1"):
        assert drain(desk, instance) == []
    desk.now += 2 * TOGETHER_S
    desk.life.tick()
    assert dismissed(desk) == []
    desk.prefill(request)
    desk.land(request)
    assert dismissed(desk) == ["p-1"]
    desk.step(request, token=7, finish="stop")
    assert dismissed(desk) == ["d-1"]
    assert request.state is State.FINISHED


def test_the_last_worker_that_decodes_does_not_stay_long_for_a_worker_that_goes_on() -> None:
    desk = Desk(("p-1", "d-1"))
    desk.submit()
    desk.sent()
    assert drain(desk, "d-1") == []
    desk.now += 2 * TOGETHER_S
    desk.life.tick()
    assert dismissed(desk) == ["d-1"]


def test_idle_workers_that_all_drain_are_dismissed_at_once() -> None:
    desk = Desk(("p-1", "d-1"))
    assert drain(desk, "d-1") == [("d-1", Dismissed())]
    assert drain(desk, "p-1") == [("p-1", Dismissed())]
    assert drain(desk, "d-1") == [("d-1", Dismissed())], "asked again, as after a lost answer"


def test_the_fuller_worker_may_have_fewer_sequences() -> None:
    """Each of them is longer. A worker of any role could pull from itself, and is no target."""
    desk = Desk((), any_role=True)
    desk.num_slots, desk.max_tokens = 16, 2_000
    for name in ("p-1", "d-1", "d-2"):
        desk.join(name, 20_000)
    requests = []
    for worker, other, length, count in (("d-1", "d-2", 60_000, 3), ("d-2", "d-1", 20, 4)):
        desk.registry.require(other).draining = True
        for number in range(count):
            request = desk.submit(f"{worker}-{number}", length)
            desk.prefill(request)
            desk.land(request)
            desk.step(request)
            assert request.decode_worker == worker
            requests.append(request)
        desk.registry.require(other).draining = False
    for request in requests:
        request.moving, request.moved_at = False, -inf  # as if nobody had ever drained
    desk.sent()
    for _ in range(6):
        desk.now += 1
        for request in requests:
            request.progress_at = desk.now
        desk.life.tick()
    assert [to for to, message in desk.sent() if isinstance(message, Move)] == ["d-1"]


def test_a_handoff_after_a_move_of_an_earlier_attempt_is_measured() -> None:
    desk = Desk(("p-1", "d-1", "d-2"))
    request = desk.submit("r")
    desk.prefill(request)
    desk.land(request)
    desk.step(request)
    drain(desk, request.decode_worker)
    settle(desk, request)
    desk.land(request)
    desk.step(request)
    desk.life.failed(request.decode_worker, Failed("r", 1, "preempted", "out of pages", True))
    desk.prefill(request)
    desk.land(request)
    desk.take_effects()
    desk.step(request, first_steps=(FirstStep("r", 2, 0.01),))
    assert [type(each) for each in desk.take_effects()].count(HandedOff) == 1
