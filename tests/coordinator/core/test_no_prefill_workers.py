"""While no prefill worker takes work, decode workers compute prompts."""

from coordinator.core.request import State
from coordinator.core.settings import RetryLimits
from tests.coordinator.desk import Desk, ids_of
from transport.wire.messages import Cancel, Decode, Failed, Generate, Prefill


def test_prompts_go_to_decode_workers_when_the_last_prefill_worker_is_lost() -> None:
    desk = Desk(("p-1", "d-1", "d-2"))
    lost = desk.submit("lost")
    offered = desk.submit("offered")
    desk.prefill(offered)  # and its copy has not begun to end
    running = desk.submit("running")
    desk.prefill(running)
    desk.land(running)
    desk.sent()
    desk.life.worker_lost("p-1")
    new = desk.submit("new")
    orders = {m.request_id: (at, m) for at, m in desk.sent() if isinstance(m, Generate)}
    assert sorted(orders) == ["lost", "new"]
    assert {at for at, _ in orders.values()} == {"d-1", "d-2"}
    assert (offered.state, running.state) == (State.HANDOFF, State.DECODING), "left where it is"
    desk.begin(new)
    assert (new.state, new.decode_worker) == (State.DECODING, orders["new"][0])
    desk.step(new, finish="length")
    assert new.state is State.FINISHED
    assert new.request_id not in desk.registry.require(orders["new"][0]).load.requests
    assert ids_of(orders["lost"][1]) == list(range(10))
    assert lost.attempt == 2


def test_a_prefill_worker_that_is_back_gets_the_next_prompts_and_what_was_placed_stays() -> None:
    desk = Desk(("p-1", "d-1"))
    desk.life.worker_lost("p-1")
    stays = desk.submit("stays")
    desk.join("p-2")
    assert not desk.registry.decode_computes_prompts()
    desk.sent()
    desk.submit("next")
    ((at, order),) = desk.sent()
    assert (at, type(order)) == ("p-2", Prefill)
    desk.begin(stays)
    assert (stays.state, stays.attempt, stays.decode_worker) == (State.DECODING, 1, "d-1")


def test_while_the_only_prefill_worker_drains_it_finishes_what_it_has() -> None:
    desk = Desk(("p-1", "d-1"))
    begun = desk.submit("begun")
    desk.sent()
    desk.life.worker_draining(desk.registry.require("p-1"))
    desk.submit("new")
    ((at, order),) = desk.sent()
    assert (at, type(order)) == ("d-1", Generate)
    desk.prefill(begun)
    ((at, order),) = desk.sent()
    assert (at, type(order), order.request_id) == ("d-1", Decode, "begun")


def test_what_waits_for_a_worker_that_drains_is_placed_at_once() -> None:
    desk = Desk(("p-1", "d-1"))
    for number in range(4):  # as many as it has state slots
        desk.submit(f"r{number}")
    waits = desk.submit("waits")
    assert waits.state is State.QUEUED
    desk.life.worker_draining(desk.registry.require("p-1"))
    assert (waits.state, waits.prefill_worker) == (State.PREFILLING, "d-1")


def test_before_a_prefill_worker_was_there_prompts_wait_for_it() -> None:
    desk = Desk(("d-1",))
    request = desk.submit()
    assert request.state is State.QUEUED
    desk.join("p-1")
    assert request.prefill_worker == "p-1"


def test_without_decode_workers_too_prompts_wait() -> None:
    desk = Desk(("p-1", "d-1"))
    desk.life.worker_lost("p-1")
    desk.life.worker_lost("d-1")
    request = desk.submit()
    assert request.state is State.QUEUED
    desk.join("d-2")
    assert request.prefill_worker == "d-2"


def test_a_cancel_and_a_lost_decode_worker_are_as_at_a_colocated_worker() -> None:
    desk = Desk(("p-1", "d-1", "d-2"))
    desk.life.worker_lost("p-1")
    request = desk.submit()
    desk.begin(request, token=1)
    desk.step(request, token=2)
    desk.sent()
    first = request.decode_worker
    desk.life.worker_lost(first)
    ((other, order),) = desk.orders()
    assert other != first
    assert (type(order), ids_of(order)) == (Generate, [*range(10), 1, 2])
    desk.life.cancel(request)
    assert desk.sent() == [(other, Cancel("r", 2))]
    assert not desk.registry.require(other).load.requests


def test_nan_at_a_decode_worker_that_computed_the_prompt_is_charged_to_it_alone() -> None:
    desk = Desk(("p-1", "d-1", "d-2"))
    desk.life.worker_lost("p-1")
    request = desk.submit()
    at = request.prefill_worker
    desk.begin(request)
    desk.life.failed(at, Failed("r", 1, "not_finite", "nan", True))
    assert request.avoided == {at}
    assert request.prefill_worker not in ("", at), "the retry goes to the other one"
    assert list(desk.registry.require(at).unconfirmed) == ["r"]
    desk.begin(request)
    assert not desk.registry.require(at).unconfirmed, "another attempt got further: it is charged"


def test_a_prompt_does_not_overtake_a_handoff_that_waits_for_room() -> None:
    desk = Desk(("p-1", "d-1"))
    running = desk.submit("running", length=30 * 16)
    desk.prefill(running)
    desk.land(running)
    long = desk.submit("long", length=50 * 16)
    desk.prefill(long)
    assert (long.state, long.decode_worker) == (State.HANDOFF, ""), "no room beside the other"
    desk.life.worker_draining(desk.registry.require("p-1"))
    young = desk.submit("young")
    assert young.state is State.QUEUED
    desk.step(running, finish="length")
    assert long.decode_worker == "d-1"
    assert young.prefill_worker == "d-1"


def test_a_prompt_parked_for_a_larger_prefill_worker_goes_to_a_decode_worker_instead() -> None:
    desk = Desk(("p-1",))
    desk.join("d-1", num_pages=256)
    desk.life.worker_lost("p-1")
    desk.join("p-2", num_pages=4)
    request = desk.submit(length=40 * 16)
    desk.life.failed("p-2", Failed("r", 1, "too_long", "too long", False))
    assert (request.state, request.too_long_for) == (State.QUEUED, "prefill")
    desk.life.worker_lost("p-2")
    assert request.prefill_worker == "d-1"


def test_a_quarantined_request_has_a_decode_worker_alone_until_a_prefill_worker_is_back() -> None:
    desk = Desk(("p-1", "d-1", "d-2"), retries=RetryLimits(wait_s=30.0))
    desk.life.worker_lost("p-1", "goodbye")
    for number in range(4):
        desk.submit(f"busy-{number}")
    suspect = desk.submit("suspect")
    at = suspect.prefill_worker
    suspect.quarantined, suspect.deaths, suspect.died_at_len = True, 2, suspect.num_tokens
    desk.life.worker_lost(at, "goodbye")
    (left,) = desk.registry.of("decode")
    assert (suspect.state, left.reserved_for) == (State.QUEUED, suspect)
    desk.life.tick()
    assert left.reserved_for is suspect, "it waits for the worker to finish what it has"
    desk.join("p-2")
    assert suspect.prefill_worker == "p-2"
    assert left.reserved_for is None
