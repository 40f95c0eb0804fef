"""The order in which nodes are asked, and load as its limit."""

from collections import Counter

from deploy.ray.ranking import Choice, ranked

NODES = ("a", "b", "c")
KEYS = [str(number).encode() for number in range(3000)]


def order(key: bytes, nodes: tuple[str, ...] = NODES, **loads: int) -> list[str]:
    return ranked(key, [Choice(node, loads.get(node, 0)) for node in nodes], max_lead=4)


def test_the_order_follows_from_the_key_alone() -> None:
    assert order(b"key") == order(b"key", ("c", "a", "b"))
    assert sorted(order(b"key")) == [*NODES]


def test_conversations_spread_evenly() -> None:
    homes = Counter(order(key)[0] for key in KEYS)
    assert all(900 < homes[node] < 1100 for node in NODES)


def test_a_node_that_comes_takes_its_share_and_moves_no_other_conversation() -> None:
    before = {key: order(key)[0] for key in KEYS}
    after = {key: order(key, (*NODES, "d"))[0] for key in KEYS}
    moved = {key for key in KEYS if before[key] != after[key]}
    assert {after[key] for key in moved} == {"d"}
    assert len(KEYS) / 5 < len(moved) < len(KEYS) / 3


def test_a_node_far_above_the_least_loaded_one_is_passed_over() -> None:
    first, second, third = order(b"key")
    assert order(b"key", **{first: 4}) == [first, second, third]
    assert order(b"key", **{first: 5}) == [second, third, first]
    assert order(b"key", **{first: 9, second: 6}) == [third, second, first]


def test_of_many_requests_a_quarter_more_is_not_far() -> None:
    first, second, third = order(b"key")
    assert order(b"key", **{first: 125, second: 100, third: 100})[0] == first
    assert order(b"key", **{first: 126, second: 100, third: 100})[0] == second


def test_a_node_that_is_not_ready_comes_last_and_its_load_does_not_count() -> None:
    first, second, third = order(b"key")
    choices = [Choice(first, 0, ready=False), Choice(second, 9), Choice(third, 9)]
    assert ranked(b"key", choices, 4) == [second, third, first]


def test_no_nodes_have_no_order() -> None:
    assert ranked(b"key", [], 4) == []
