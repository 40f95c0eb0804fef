"""The lifecycle's answers to single events; tests/simulation covers their interleavings."""

import pytest

from coordinator.core.effects import Effect, Emit, Ended, HandedOff, Send
from coordinator.core.request import State
from coordinator.core.request_report import to_record
from coordinator.core.settings import RetryLimits
from coordinator.record.record import stage_seconds
from tests.coordinator.desk import Desk, ids_of
from transport.wire.messages import (
    Cancel,
    Decode,
    ExpectHandoff,
    Failed,
    Generate,
    LastChunk,
    Prefill,
    Prefilled,
    Release,
    TokenOut,
    Tokens,
    TransferDone,
)
from transport.wire.offers import Offer
from transport.wire.reports import FirstStep


def test_a_request_runs_through_prefill_and_decode_and_ends_once() -> None:
    desk = Desk()
    request = desk.submit()
    ((prefill_at, prefill),) = desk.sent()
    assert isinstance(prefill, Prefill)
    desk.prefill(request)
    ((decode_at, decode),) = desk.sent()
    assert isinstance(decode, Decode)
    assert (ids_of(decode), decode.num_prompt) == ([*range(10), 1], 10)
    assert request.state is State.HANDOFF
    desk.land(request)
    assert desk.sent() == [(prefill_at, Release("r", 1, epoch=3))]
    desk.step(request, token=7, finish="stop")
    assert request.state is State.FINISHED
    assert request.output_ids.tolist() == [1, 7]
    assert not desk.registry.get(decode_at).load.requests
    assert not desk.registry.get(prefill_at).load.requests
    assert sum(isinstance(e, Ended) for e in desk.take_effects()) == 1


def test_an_order_to_decode_is_sent_before_waiting_prompts_are_placed() -> None:
    desk = Desk(("d-1",))
    desk.join("p-1", num_pages=4_096)
    first = desk.submit("r-1", length=17_000)
    second = desk.submit("r-2", length=17_000)
    assert second.state is State.QUEUED
    desk.sent()
    seen: list[tuple[type, State]] = []

    def carry_out(effect: Effect) -> None:
        if isinstance(effect, Send):
            seen.append((type(effect.message), second.state))

    desk.life._outbox._carry_out = carry_out
    pages = tuple(range(1_063))
    message = Prefilled(TokenOut("r-1", 1, 0, 1), Offer("p-1", pages, 2, 3, 17_000), 1.0, 2.0)
    desk.life.prefilled("p-1", message)
    assert first.decode_worker == "d-1"
    assert seen == [(Decode, State.QUEUED), (Prefill, State.PREFILLING)]


def test_a_handoff_is_announced_to_the_idle_decode_worker_that_would_get_it() -> None:
    desk = Desk(("p-1", "d-1", "d-2"))
    first, second, third = (desk.submit(name) for name in ("r-1", "r-2", "r-3"))
    desk.sent()
    desk.life.last_chunk("p-1", LastChunk("r-1", 1))
    ((announced, expect),) = desk.sent()
    assert expect == ExpectHandoff()
    assert first.decode_worker == ""
    assert not desk.registry.require(announced).load.requests, "nothing is reserved"
    desk.prefill(first)
    assert first.decode_worker == announced
    desk.prefill(second)
    desk.sent()
    desk.life.last_chunk("p-1", LastChunk("r-3", 1))
    assert desk.sent() == [], "both decode"
    desk.life.last_chunk("p-1", LastChunk("r-1", 1))
    desk.life.last_chunk("p-1", LastChunk("unknown", 1))
    assert desk.life.stale_dropped == 2
    desk.prefill(third)
    assert third.decode_worker


def test_a_request_at_a_colocated_worker_needs_no_handoff() -> None:
    desk = Desk(("b-1", "b-2"))
    request = desk.submit()
    ((worker, order),) = desk.sent()
    assert isinstance(order, Generate)
    assert ids_of(order) == [*range(10)]
    desk.begin(request)
    assert desk.sent() == []
    assert request.state is State.DECODING
    assert (request.prefill_worker, request.decode_worker) == (worker, worker)
    assert list(desk.registry.get(worker).load.requests) == ["r"]
    desk.step(request, token=7, finish="stop")
    assert request.state is State.FINISHED
    assert not desk.registry.get(worker).load.requests


def test_a_colocated_worker_that_preempts_is_the_last_choice_for_the_retry() -> None:
    desk = Desk(("b-1", "b-2", "b-3"))
    request = desk.submit()
    desk.begin(request)
    for _ in range(5):
        failed_at = request.decode_worker or request.prefill_worker
        desk.life.failed(failed_at, Failed("r", request.attempt, "preempted", "pages", True))
        assert request.prefill_worker != failed_at


def test_the_parts_of_a_handoff_come_from_clocks_that_are_never_mixed() -> None:
    desk = Desk()
    request = desk.submit()
    desk.prefill(request)
    desk.now += 1.0
    desk.land(request)
    desk.now += 0.5
    desk.take_effects()
    desk.step(request, first_steps=(FirstStep("r", 1, 0.3),))
    (handed_off,) = (e for e in desk.take_effects() if isinstance(e, HandedOff))
    found = stage_seconds(handed_off.request.stages)
    expected = {
        "no_decode_worker": 0.0, "messages": 0.389, "in_socket": 0.01, "wait_memory": 0.2,
        "launch": 0.001,
        "copy": 0.5, "boundary": 0.1, "first_step": 0.3, "to_transferred": 1.0, "total": 1.5,
        "overhead": 0.59,
    }  # fmt: skip
    assert found == pytest.approx(expected)
    desk.step(request)
    assert not any(isinstance(e, HandedOff) for e in desk.take_effects()), "once only"


def test_the_record_of_a_new_attempt_forgets_the_old_ones_stages() -> None:
    desk = Desk()
    request = desk.submit()
    desk.prefill(request)
    desk.land(request)
    desk.step(request, first_steps=(FirstStep("r", 1, 0.3),))
    before = to_record(request, "c")
    desk.now += 5.0
    desk.life.worker_lost(request.decode_worker)
    after = to_record(request, "c")
    assert after.order > before.order
    assert (after.attempt, after.state, after.queued_at) == (2, "prefilling", 105.0)
    assert (after.received_at, after.first_token_at) == (100.0, 100.0)
    forgotten = ("prefilled_at", "transferred_at", "copy_s", "first_step_s", "first_decode_at")
    assert [getattr(after, name) for name in forgotten] == [None] * 5
    assert (before.handoff_bytes, after.handoff_bytes, after.bytes_moved) == (100, 0, 100)
    assert stage_seconds(request.stages) == {}


def test_a_handoff_is_told_once_each_attempt_and_never_at_a_colocated_worker() -> None:
    desk = Desk(("b-1",))
    request = desk.submit()
    desk.begin(request)
    desk.step(request)
    assert stage_seconds(request.stages) == {}
    assert not any(isinstance(e, HandedOff) for e in desk.take_effects())


def test_low_load_spreads_evenly_over_the_workers_of_each_role() -> None:
    desk = Desk()
    prefills, decodes = [], []
    for number in range(4):
        request = desk.submit(f"r{number}")
        prefills.append(request.prefill_worker)
        desk.prefill(request)
        decodes.append(request.decode_worker)
        desk.land(request)
        desk.step(request, finish="length")
    assert sorted(prefills) == ["p-1", "p-1", "p-2", "p-2"]
    assert sorted(decodes) == ["d-1", "d-1", "d-2", "d-2"]


def test_stale_messages_are_dropped_and_counted() -> None:
    desk = Desk()
    request = desk.submit()
    desk.prefill(request)
    desk.land(request)
    old_worker = request.decode_worker
    desk.life.worker_lost(old_worker)
    desk.take_effects()
    desk.life.tokens(old_worker, Tokens((TokenOut("r", 1, 1, 9),), (FirstStep("r", 1, 1.0),)))
    desk.life.failed(old_worker, Failed("r", 1, "preempted", "", True))
    desk.life.transfer_done("d-9", TransferDone("r", 2, 1))
    desk.life.tokens("d-1", Tokens((TokenOut("nobody", 1, 0, 9),)))
    assert desk.life.stale_dropped == 5
    assert not any(isinstance(e, Emit) for e in desk.take_effects())


def test_faults_are_bounded_but_preemptions_are_not() -> None:
    desk = Desk(retries=RetryLimits(max_faults=2))
    request = desk.submit()
    for _ in range(10):
        failed = Failed("r", request.attempt, "preempted", "out of pages", True)
        desk.life.failed(request.prefill_worker, failed)
    assert request.state is State.PREFILLING
    for _ in range(3):
        failed = Failed("r", request.attempt, "stale_offer", "changed hands", True)
        desk.life.failed(request.prefill_worker, failed)
    assert request.state is State.FAILED
    assert request.code == "stale_offer"
    assert "gave up after 3 faults" in request.message


def test_a_cancel_reaches_every_worker_that_holds_the_request() -> None:
    desk = Desk()
    request = desk.submit()
    desk.prefill(request)
    desk.sent()
    desk.life.cancel(request)
    told = {(instance, type(message)) for instance, message in desk.sent()}
    assert told == {(request.prefill_worker, Cancel), (request.decode_worker, Cancel)}
    assert request.state is State.CANCELLED


def test_of_those_that_fail_together_none_is_placed_first() -> None:
    desk = Desk()
    running = [desk.submit(f"r{n}") for n in range(8)]
    queued = [desk.submit(f"q{n}") for n in range(3)]
    desk.sent()
    desk.life.fail_all([*running, *queued[:2]], "timeout", "not done after 5 s")
    told = desk.sent()
    cancelled = [m.request_id for _, m in told if isinstance(m, Cancel)]
    assert sorted(cancelled) == [r.request_id for r in running]
    assert [m.request_id for _, m in told if isinstance(m, Prefill)] == ["q2"]
    assert {(r.state, r.code) for r in queued[:2]} == {(State.FAILED, "timeout")}
    assert list(desk.life.requests) == ["q2"]


def test_without_room_for_decode_the_prompt_waits_in_the_prefill_pool() -> None:
    desk = Desk()
    desk.life.worker_lost("d-2")
    requests = [desk.submit(f"r{n}") for n in range(5)]
    for request in requests:
        desk.prefill(request)
    assert [r.decode_worker for r in requests] == ["d-1"] * 4 + [""]
    desk.land(requests[0])
    desk.step(requests[0], finish="length")
    assert requests[4].decode_worker == "d-1"


def test_what_outgrew_a_worker_goes_to_a_larger_one_that_has_just_rejoined() -> None:
    desk = Desk(("b-1",))
    request = desk.submit(length=20)
    desk.join("b-2", num_pages=1)
    desk.life.worker_lost("b-1")
    assert request.prefill_worker == "b-2", "the largest one left"
    too_long = Failed("r", request.attempt, "too_long", "20 tokens do not fit", False)
    desk.join("b-3")
    desk.life.failed("b-2", too_long)
    assert (request.state, request.prefill_worker) == (State.PREFILLING, "b-3")


def test_what_outgrew_a_worker_waits_aside_until_a_larger_one_joins() -> None:
    desk = Desk(("b-1",))
    request = desk.submit(length=20)
    desk.join("b-2", num_pages=1)
    desk.life.worker_lost("b-1")
    too_long = Failed("r", request.attempt, "too_long", "20 tokens do not fit", False)
    desk.life.failed("b-2", too_long)
    assert (request.state, desk.life.num_queued) == (State.QUEUED, 1)
    short = desk.submit("short", length=2)
    assert short.prefill_worker == "b-2", "it holds up no others"
    desk.join("b-3")
    assert request.prefill_worker == "b-3"


def test_what_no_worker_was_ever_large_enough_for_fails_at_once() -> None:
    desk = Desk(("b-1",))
    request = desk.submit(length=20)
    too_long = Failed("r", request.attempt, "too_long", "20 tokens do not fit", False)
    desk.life.failed("b-1", too_long)
    assert (request.state, request.code) == (State.FAILED, "too_long")


def test_what_a_draining_prefill_worker_offers_goes_to_one_that_drains_if_all_do() -> None:
    desk = Desk(("p-1", "d-1"))
    request = desk.submit()
    desk.life.worker_draining(desk.registry.require("d-1"))
    desk.prefill(request)
    assert request.state is State.HANDOFF
    assert not request.decode_worker, "another decode worker may come"
    desk.life.worker_draining(desk.registry.require("p-1"))
    assert request.decode_worker == "d-1"


def test_a_prefill_worker_that_was_away_keeps_no_offer() -> None:
    """It is back under its name, and its request is computed again when the decode worker dies."""
    desk = Desk(("p-1", "d-1"))
    request = desk.submit("r")
    desk.prefill(request)
    assert request.state is State.HANDOFF
    desk.life.worker_lost("p-1", "rejoined")
    desk.join("p-1")
    desk.life.worker_lost("d-1")
    assert (request.state, request.attempt) == (State.PREFILLING, 2)
