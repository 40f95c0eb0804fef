"""Turns between API keys: nobody starves, capacity is used, weights hold."""

from collections import Counter
from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.core.contract import SequenceRequest
from coordinator.core.placement.fair_queue import LOWER_EVERY, QUANTUM, SLOT_COST, FairQueue
from coordinator.core.request import Request
from tests.examples import examples
from transport.wire.sampling import SamplingParams, StopRule
from transport.wire.token_ids import packed

_NUMBERS = count(1)
KEYS = st.sampled_from(["a", "b", "c", "d"])
COSTS = st.integers(1, 20_000)
LARGEST = 20_000 + SLOT_COST


def request(key: str, weight: int = 1, priority: int = 0) -> Request:
    number = next(_NUMBERS)
    spec = SequenceRequest(
        f"r{number}", packed((1,)), SamplingParams(), StopRule(4), key=key, weight=weight,
        priority=priority,
    )  # fmt: skip
    return Request(spec, number)


def backlog(num: int = 5_000, **weights: int) -> FairQueue:
    """Always enough requests of each key."""
    queue = FairQueue()
    for key, weight in weights.items():
        for _ in range(num):
            queue.add(request(key, weight))
    return queue


def served(queue: FairQueue, costs: list[int]) -> Counter[str]:
    """What each key was given."""
    given_to: Counter[str] = Counter()
    for cost in costs:
        first = queue.next()
        assert first is not None
        queue.placed(first, cost)
        given_to[first.spec.key] += cost + SLOT_COST
    return given_to


@given(st.lists(st.tuples(st.booleans(), KEYS, COSTS), max_size=200))
def test_there_is_a_next_request_as_long_as_one_waits_and_each_key_keeps_its_order(
    events: list[tuple[bool, str, int]],
) -> None:
    queue, waiting, last = FairQueue(), 0, dict.fromkeys("abcd", 0)
    for arrives, key, cost in events:
        if arrives:
            queue.add(request(key))
            waiting += 1
        first = queue.next()
        assert (first is not None) == (waiting > 0) == (len(queue) > 0)
        assert queue.next() is first, "asking changes nothing"
        if first is not None and not arrives:
            queue.placed(first, cost)
            waiting -= 1
            assert first.arrival > last[first.spec.key]
            last[first.spec.key] = first.arrival


@given(st.lists(COSTS, min_size=300, max_size=600), st.integers(1, 5), st.integers(1, 5))
@settings(max_examples=examples(40))
def test_keys_get_what_their_weights_say(costs: list[int], first: int, second: int) -> None:
    given_to = served(backlog(1_000, a=first, b=second), costs)
    behind = abs(given_to["a"] / first - given_to["b"] / second)
    assert behind <= 2 * (QUANTUM + LARGEST)


@given(st.data(), st.lists(st.tuples(KEYS, COSTS), max_size=60))
@settings(max_examples=examples(60))
def test_no_request_waits_longer_than_its_keys_and_the_others_turns(
    data: st.DataObject, others: list[tuple[str, int]]
) -> None:
    """However the other keys have been served before, and whatever they send meanwhile."""
    queue = backlog(50, b=3, c=1, d=2)
    for key, _ in others:
        queue.add(request(key))
    for _, cost in others:
        first = queue.next()
        assert first is not None
        queue.placed(first, cost)
    mine = request("a")
    ahead = sum(each.spec.key == "a" for each in _drained(queue))
    queue.add(mine)
    others_got, mine_got = 0, 0
    while (first := queue.next()) is not mine:
        assert first is not None
        cost = data.draw(COSTS)
        queue.placed(first, cost)
        if first.spec.key == "a":
            mine_got += cost + SLOT_COST
        else:
            others_got += cost + SLOT_COST
            queue.add(request(first.spec.key))
    # Each turn of "a" gives it a quantum; meanwhile the others get six, and overdraw once each.
    turns = 2 + (mine_got + LARGEST * (ahead + 1)) / QUANTUM
    assert others_got <= turns * 6 * QUANTUM + 3 * LARGEST


def _drained(queue: FairQueue) -> list[Request]:
    return [each for flow in queue._flows.values() for each in flow.requests]


def test_a_key_that_comes_has_the_next_turn_though_hundreds_of_requests_wait() -> None:
    queue = backlog(500, a=1)
    served(queue, [100] * 50)
    mine = request("b")
    queue.add(mine)
    waited = 0
    while (first := queue.next()) is not mine:
        assert first is not None
        queue.placed(first, 100)
        waited += 100 + SLOT_COST
    assert waited <= QUANTUM + 100 + SLOT_COST


def test_a_key_that_comes_again_and_again_does_not_push_the_others_back() -> None:
    queue = backlog(3_000, a=1, b=1, c=1)
    given_to: Counter[str] = Counter()
    queue.add(request("d"))
    for _ in range(3_000):
        first = queue.next()
        assert first is not None
        queue.placed(first, 1_000)
        given_to[first.spec.key] += 1
        if first.spec.key == "d":
            queue.add(request("d"))  # only when its last one was placed
    others = [given_to[key] for key in "abc"]
    assert max(others) - min(others) <= 3
    assert 0.4 * min(others) < given_to["d"] <= max(others)


def test_what_a_key_owes_does_not_grow_while_it_is_alone() -> None:
    queue = backlog(500, a=1)
    served(queue, [10_000] * 100)
    for _ in range(300):
        queue.add(request("b"))
    given_to = served(queue, [1_000] * 200)
    assert abs(given_to["a"] - given_to["b"]) <= 10_000 + 2 * QUANTUM + 2_000


@given(st.lists(COSTS, min_size=200, max_size=300))
@settings(max_examples=examples(30))
def test_higher_priorities_go_first_and_lower_ones_get_a_part(costs: list[int]) -> None:
    queue = FairQueue()
    for _ in range(400):
        for key, priority in (("a", 0), ("b", 1), ("c", 2)):
            queue.add(request(key, priority=priority))
    first = queue.next()
    assert first is not None
    assert first.spec.key == "c"
    got = Counter[str]()
    passed = 0
    for cost in costs:
        first = queue.next()
        assert first is not None
        queue.placed(first, cost)
        got[first.spec.key] += 1
        passed = 0 if first.spec.key == "a" else passed + cost + SLOT_COST
        assert passed <= (LOWER_EVERY + 1) * QUANTUM + 2 * LARGEST
    assert got["c"] > len(costs) / 3


def test_blocked_keys_and_skipped_requests_are_passed() -> None:
    queue = FairQueue()
    one, two, three = request("a"), request("a"), request("b")
    for each in (one, two, three):
        queue.add(each)
    assert queue.next() is one
    assert queue.next({one}) is two
    assert queue.next({one, two}) is three
    assert queue.next((), {"a"}) is three
    assert queue.next((), {"a", "b"}) is None
    assert queue.next() is one
    queue.remove(one)
    queue.remove(one)
    assert (queue.next(), len(queue)) == (two, 2)


def test_one_that_returns_goes_before_later_ones_of_its_key() -> None:
    queue = FairQueue()
    first, second = request("a"), request("a")
    queue.add(second)
    queue.add(first)
    assert queue.next() is first
