"""API keys beside each other at the workers: room, places in decode steps, and the order there."""

import pytest

from coordinator.core.contract import SequenceRequest
from coordinator.core.request import Request, State
from tests.coordinator.desk import Desk
from transport.wire.messages import Cancel, Decode, Generate, Prefill
from transport.wire.sampling import SamplingParams, StopRule
from transport.wire.token_ids import packed


class Tenants(Desk):
    """A desk whose requests have keys."""

    def ask(self, key: str, number: int, length: int = 10, weight: int = 1) -> Request:
        spec = SequenceRequest(
            f"{key}{number}", packed(range(length)), SamplingParams(), StopRule(8), key=key,
            weight=weight,
        )  # fmt: skip
        return self.life.submit(spec, self.now)

    def flood(self, key: str = "a", num: int = 500, **options: int) -> list[Request]:
        return [self.ask(key, number, **options) for number in range(num)]

    def placed(self, requests: list[Request]) -> list[Request]:
        return [each for each in requests if each.state is not State.QUEUED]


def test_another_keys_request_is_placed_at_once_where_the_youngest_makes_room() -> None:
    desk = Tenants(("b-1",))
    flood = desk.flood()
    running = desk.placed(flood)
    assert len(running) == 4, "a worker has so many state slots"
    for each in running:
        desk.begin(each)
    desk.sent()
    mine = desk.ask("b", 0)
    assert mine.state is State.PREFILLING
    assert [type(message) for _, message in desk.sent()] == [Cancel, Generate]
    youngest = running[-1]
    assert (youngest.state, youngest.attempt, youngest.faults) == (State.QUEUED, 2, 0)
    assert desk.placed(flood) == running[:-1]


def test_keys_share_the_places_by_weight_and_take_no_more_from_each_other() -> None:
    desk = Tenants(("b-1",))
    flood = desk.flood()
    mine = desk.flood("b", 50, weight=3)
    assert [len(desk.placed(each)) for each in (flood, mine)] == [1, 3]
    attempts = [each.attempt for each in flood]
    desk.life.tick()
    desk.ask("a", 900)
    assert [each.attempt for each in flood] == attempts, "nothing is moved to and fro"
    desk.begin(mine[0], finish="length")
    assert len(desk.placed(flood)) + len([m for m in desk.placed(mine) if m is not mine[0]]) == 4


def test_without_other_keys_the_order_is_that_of_arrival_and_no_request_makes_room() -> None:
    desk = Tenants(("b-1",))
    flood = desk.flood("", 20)
    while any(each.state is State.QUEUED for each in flood):
        placed = [each for each in desk.placed(flood) if not each.state.terminal]
        assert placed == [each for each in flood if not each.state.terminal][:4]
        desk.begin(placed[0], finish="length")
    assert {each.attempt for each in flood} == {1}
    assert [each.rank for each in flood] == [each.arrival for each in flood]


def test_a_lone_keys_requests_use_all_places() -> None:
    desk = Tenants(("b-1", "b-2"))
    flood = desk.flood(num=20)
    assert len(desk.placed(flood)) == 8


def test_at_a_worker_prompts_of_keys_alternate_by_their_tokens() -> None:
    desk = Tenants(("b-1",))
    desk.registry.require("b-1").load._max_sequences = 100
    ours = [desk.ask("a", number, length=30) for number in range(8)]
    theirs = [desk.ask("b", number, length=60) for number in range(3)]
    order = sorted([*ours, *theirs], key=lambda each: each.rank)
    assert [each.request_id for each in order] == [
        "b0", "a0", "a1", "b1", "a2", "a3", "b2", "a4", "a5", "a6", "a7",
    ]  # fmt: skip
    late = desk.ask("a", 9, length=30)
    assert late.rank == late.arrival


def test_the_orders_of_workers_carry_the_rank() -> None:
    desk = Tenants(("b-1",))
    first, _ = desk.ask("a", 0), desk.ask("a", 1)
    desk.sent()
    mine = desk.ask("b", 0)
    ((_, order),) = desk.sent()
    assert order.arrival == mine.rank < first.rank == first.arrival


def test_another_keys_prompt_and_handoff_pass_a_full_pool() -> None:
    desk = Tenants(("p-1", "d-1"))
    flood = desk.flood()
    for _ in range(12):
        for each in list(flood):
            if each.state is State.PREFILLING:
                desk.prefill(each)
            elif each.state is State.HANDOFF and each.decode_worker:
                desk.land(each)
    assert sum(each.state is State.DECODING for each in flood) == 4
    assert desk.registry.require("p-1").load.num_sequences == 4, "their handoffs wait"
    mine = desk.ask("b", 0)
    assert mine.state is State.PREFILLING
    desk.sent()
    desk.prefill(mine)
    orders = [message for _, message in desk.sent() if isinstance(message, Decode | Prefill)]
    assert mine.decode_worker == "d-1"
    assert isinstance(orders[0], Decode)
    assert orders[0].request_id == "b0"
    desk.land(mine)
    assert mine.state is State.DECODING


@pytest.mark.parametrize("quarantined", [False, True])
def test_a_quarantined_request_makes_no_room(quarantined: bool) -> None:
    desk = Tenants(("b-1",))
    placed = desk.placed(desk.flood())
    placed[-1].quarantined = quarantined
    mine = desk.ask("b", 0)
    assert mine.state is State.PREFILLING
    assert placed[-2 if quarantined else -1].state is State.QUEUED
