"""Sequences that move because another worker of their role has much less to decode."""

import pytest

from coordinator.core.request import State
from coordinator.core.requests.balance import (
    COST_STEPS,
    HOLD_S,
    MIN_MORE,
    Balance,
    request_gains,
    weight,
)
from coordinator.core.requests.moves import MAX_TO_BALANCE
from tests.coordinator.core.test_moves import decoding, settle
from tests.coordinator.desk import Desk
from transport.wire.messages import Decode, Move

MANY = 8


def desk_of(role: str, num_workers: int, max_tokens: int = 200) -> Desk:
    """With so many workers that decode."""
    desk = Desk(())
    desk.max_tokens, desk.num_slots = max_tokens, 16
    if role == "d":
        desk.join("p-1")
    for number in range(1, num_workers + 1):
        desk.join(f"{role}-{number}")
    return desk


def uneven(role: str = "d", max_tokens: int = 200) -> Desk:
    """Two workers that decoded as many; all answers of the second one but one have ended."""
    desk = desk_of(role, 2, max_tokens)
    requests = [decoding(desk, f"r{i}") for i in range(2 * MANY)]
    _, *ending = [each for each in requests if each.decode_worker == f"{role}-2"]
    assert len(ending) == MANY - 1 >= MIN_MORE
    for request in ending:
        desk.step(request, finish="stop")
    desk.life.tick()
    desk.sent()
    return desk


def moves(desk: Desk) -> list[str]:
    return [m.request_id for _, m in desk.sent() if isinstance(m, Move)]


def moves_as_joins(desk: Desk, instance: str) -> list[str]:
    desk.join(instance)
    return [m.request_id for _, m in desk.introduced if isinstance(m, Move)] + moves(desk)


@pytest.mark.parametrize("role", ["d", "b"])
def test_the_youngest_move_to_a_worker_with_much_less_after_a_while(role: str) -> None:
    desk = uneven(role)
    desk.now += HOLD_S / 2
    desk.life.tick()
    assert moves(desk) == [], "placement may even it out"
    desk.now += HOLD_S / 2
    desk.life.tick()
    newer, older = moves(desk)
    assert MAX_TO_BALANCE == 2
    assert int(newer[1:]) > int(older[1:])
    request = desk.life.requests[newer]
    ((target, order),) = settle(desk, request)
    assert (target, type(order)) == (f"{role}-2", Decode)
    desk.land(request)
    assert (request.move_reason, request.num_moves) == ("balance", 1)
    assert request.state is State.DECODING
    settle(desk, desk.life.requests[older])
    desk.land(desk.life.requests[older])
    desk.now += 2 * HOLD_S
    desk.life.tick()
    assert moves(desk) == [], "six and three"


@pytest.mark.parametrize("role", ["d", "b"])
def test_a_worker_without_any_gets_as_many_at_once(role: str) -> None:
    desk = desk_of(role, 1)
    for i in range(MANY):
        decoding(desk, f"r{i}")
    assert moves_as_joins(desk, f"{role}-2") == ["r7", "r6", "r5"], (
        "one more would save less than a move costs"
    )


def test_several_workers_together_do_not_give_too_many() -> None:
    desk = desk_of("b", 3)
    for i in range(3 * MANY):
        decoding(desk, f"r{i}")
    assert 3 <= len(moves_as_joins(desk, "b-4")) <= 6


def test_what_was_uneven_for_a_moment_does_not_move() -> None:
    desk = uneven()
    desk.now += HOLD_S / 2
    for i in range(MIN_MORE):
        decoding(desk, f"new{i}")
    desk.now += HOLD_S / 2
    desk.life.tick()
    assert moves(desk) == []


def test_sequences_with_few_tokens_left_stay() -> None:
    desk = uneven(max_tokens=COST_STEPS)
    desk.now += HOLD_S
    desk.life.tick()
    assert moves(desk) == []


def test_no_sequence_moves_where_its_steps_would_hardly_be_shorter() -> None:
    request = uneven().life.requests["r0"]
    assert request_gains(request, 4.0, 0.0)
    assert not request_gains(request, 4.0, 2.0)
    assert not request_gains(request, 1.2, 0.0)
    assert not request_gains(request, 0.5, 0.0)


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
    balance = Balance(hold_s=0.0)
    assert balance.uneven({"d-1": 9.0, "d-2": 9.0}, 0.0) == []
    assert balance.uneven({"d-1": 9.0}, 0.0) == []
    assert balance.uneven({}, 0.0) == []
