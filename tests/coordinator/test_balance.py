"""Sequences that move because another worker of their role has much less to decode."""

import pytest

from coordinator.core.request import State
from coordinator.core.requests.balance import COST_STEPS, HOLD_S, MIN_MORE, Balance, gains, weight
from coordinator.core.requests.moves import MAX_TO_BALANCE
from tests.coordinator.desk import Desk
from tests.coordinator.test_moves import decoding, settle
from transport.wire.messages import Decode, Move


def uneven(role: str = "d", max_tokens: int = 200) -> Desk:
    """A worker that decodes as many as it can, and another one that has just joined."""
    desk = Desk(("p-1", "d-1") if role == "d" else ("b-1",))
    desk.max_tokens = max_tokens
    for i in range(MIN_MORE):
        assert decoding(desk, f"r{i}").decode_worker == f"{role}-1"
    desk.join(f"{role}-2")
    desk.life.tick()
    desk.sent()
    return desk


def moves(desk: Desk) -> list[str]:
    return [m.request_id for _, m in desk.sent() if isinstance(m, Move)]


@pytest.mark.parametrize("role", ["d", "b"])
def test_the_youngest_move_to_a_worker_without_any_after_a_while(role: str) -> None:
    desk = uneven(role)
    desk.now += HOLD_S / 2
    desk.life.tick()
    assert moves(desk) == [], "placement may even it out"
    desk.now += HOLD_S / 2
    desk.life.tick()
    assert moves(desk) == ["r3", "r2"]
    assert MAX_TO_BALANCE == 2
    request = desk.life.requests["r3"]
    ((target, order),) = settle(desk, request)
    assert (target, type(order)) == (f"{role}-2", Decode)
    desk.land(request)
    assert (request.move_reason, request.num_moves) == ("balance", 1)
    assert request.state is State.DECODING
    settle(desk, desk.life.requests["r2"])
    desk.land(desk.life.requests["r2"])
    desk.now += 2 * HOLD_S
    desk.life.tick()
    assert moves(desk) == [], "two and two"


def test_what_was_uneven_for_a_moment_does_not_move() -> None:
    desk = uneven()
    desk.now += HOLD_S / 2
    decoding(desk, "new")
    desk.now += HOLD_S / 2
    desk.life.tick()
    assert moves(desk) == []


def test_sequences_with_few_tokens_left_stay() -> None:
    desk = uneven(max_tokens=COST_STEPS)
    desk.now += HOLD_S
    desk.life.tick()
    assert moves(desk) == []


def test_no_sequence_moves_where_its_steps_would_hardly_be_shorter() -> None:
    desk = uneven()
    request, target = desk.life.requests["r3"], desk.registry.require("d-2")
    assert gains(request, 4.0, target)
    assert not gains(request, 1.2, target)
    assert not gains(request, 0.5, target)


def test_long_contexts_count_as_sequences() -> None:
    desk = Desk(("p-1", "d-1", "d-2"))
    worker = desk.registry.require("d-1")
    before = weight(worker)
    request = decoding(desk)
    assert before == 0
    assert 1 < weight(desk.registry.require(request.decode_worker)) < 1.01
    request.output_ids.extend([2] * 16 * 40)
    desk.step(request)
    assert weight(desk.registry.require(request.decode_worker)) > 1.03


def test_even_workers_and_a_lone_one_are_not_uneven() -> None:
    desk = Desk(("p-1", "d-1", "d-2"))
    for i in range(4):
        decoding(desk, f"r{i}")
    balance = Balance(hold_s=0.0)
    assert balance.uneven(desk.registry.of("decode"), 0.0) == []
    assert balance.uneven([desk.registry.require("d-1")], 0.0) == []
    assert balance.uneven([], 0.0) == []
