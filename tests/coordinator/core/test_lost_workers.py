"""Requests whose worker or order is lost."""

import pytest

from coordinator.core.request import State
from tests.coordinator.desk import Desk, ids_of
from transport.wire.messages import (
    Cancel,
    Decode,
    Failed,
    Generate,
    Prefill,
)


def test_a_request_of_a_lost_colocated_worker_is_resumed_from_the_tokens_sent() -> None:
    desk = Desk(("b-1", "b-2"))
    request = desk.submit()
    desk.begin(request, token=1)
    desk.step(request, token=2)
    desk.sent()
    lost = request.decode_worker
    desk.life.worker_lost(lost)
    ((other, order),) = desk.orders()
    assert other != lost
    assert isinstance(order, Generate)
    assert (ids_of(order), order.num_prompt, order.attempt) == ([*range(10), 1, 2], 10, 2)
    desk.life.cancel(request)
    assert desk.sent() == [(other, Cancel("r", 2))]


def test_a_lost_decode_worker_before_landing_costs_no_second_prefill() -> None:
    desk = Desk()
    request = desk.submit()
    desk.prefill(request)
    first = request.decode_worker
    desk.sent()
    desk.life.worker_lost(first)
    ((second, message),) = desk.orders()
    assert isinstance(message, Decode)
    assert second == request.decode_worker != first
    assert request.attempt == 1


@pytest.mark.parametrize("code", ["draining", "preempted"])
def test_a_decode_worker_that_gives_back_before_landing_costs_no_second_prefill(code: str) -> None:
    desk = Desk()
    request = desk.submit()
    desk.prefill(request)
    first = request.decode_worker
    desk.registry.get(first).draining = code == "draining"
    desk.sent()
    desk.life.failed(first, Failed("r", 1, code, "", True))
    ((second, message),) = desk.orders()  # and no Cancel: the first has let go of it
    assert isinstance(message, Decode)
    assert second == request.decode_worker != first
    assert not desk.registry.get(first).load.requests
    desk.land(request)
    desk.registry.get(second).draining = code == "draining"
    desk.sent()
    desk.life.failed(second, Failed("r", 1, code, "", True))
    ((_, message),) = desk.orders()
    assert isinstance(message, Prefill), "what had landed is there no more"
    assert (request.attempt, request.faults) == (2, 0)


def test_a_lost_decode_worker_mid_stream_is_resumed_from_the_tokens_sent() -> None:
    desk = Desk()
    request = desk.submit()
    desk.prefill(request, token=1)
    desk.land(request)
    desk.step(request, token=2)
    desk.sent()
    desk.life.worker_lost(request.decode_worker)
    ((_, message),) = desk.orders()
    assert isinstance(message, Prefill)
    assert (ids_of(message), message.num_prompt, message.attempt) == ([*range(10), 1, 2], 10, 2)


def test_a_lost_prefill_worker_leaves_a_pull_under_way_alone() -> None:
    desk = Desk()
    request = desk.submit()
    desk.prefill(request)
    desk.life.worker_lost(request.prefill_worker)
    assert request.state is State.HANDOFF
    desk.land(request)
    assert request.state is State.DECODING


def test_a_heartbeat_reveals_what_a_lost_message_stranded() -> None:
    desk = Desk()
    request = desk.submit()
    worker = desk.registry.get(request.prefill_worker)
    for _ in range(3):
        assert request.attempt == 1, "its order may have come after the worker had looked"
        desk.now += 10.0
        desk.life.reconcile(worker, set(), heartbeat_s=1.0)
    assert (request.attempt, request.faults) == (2, 1)
    assert request.prefill_worker != worker.instance


def test_heartbeats_that_queued_up_tell_nothing_of_orders_sent_since() -> None:
    desk = Desk()
    request = desk.submit()
    worker = desk.registry.get(request.prefill_worker)
    for _ in range(10):
        desk.now += 0.001
        desk.life.reconcile(worker, set(), heartbeat_s=1.0)
    desk.now += 1.0
    desk.life.reconcile(worker, set(), heartbeat_s=1.0)
    assert request.attempt == 1
    desk.now += 1.0
    desk.life.reconcile(worker, {("r", 1)}, heartbeat_s=1.0)
    assert request.attempt == 1


def test_a_heartbeat_with_a_request_that_is_over_is_answered_with_cancel() -> None:
    desk = Desk()
    worker = desk.registry.get("d-1")
    desk.life.reconcile(worker, {("long gone", 3)}, heartbeat_s=1.0)
    assert desk.sent() == [("d-1", Cancel("long gone", 3))]
