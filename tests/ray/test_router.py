"""Ray's hook: which replicas are asked, and in which order."""

from types import SimpleNamespace
from typing import Any

import pytest

from deploy.ray.router import ConversationRouter

NAMES = ("a", "b", "c")


def replicas(**stats: dict[str, Any]) -> list[Any]:
    """One for each name; ``stats`` are routing stats by name."""
    return [
        SimpleNamespace(replica_id=SimpleNamespace(unique_id=n), routing_stats=stats.get(n, {}))
        for n in NAMES
    ]


async def order(candidates: list[Any], **wanted: Any) -> list[str]:
    router = object.__new__(ConversationRouter)  # Ray's own state is not used
    router.initialize_state(max_lead=4)
    metadata = SimpleNamespace(internal_request_id="request")
    context = SimpleNamespace(should_backoff=False)
    pending = SimpleNamespace(kwargs=wanted, metadata=metadata, routing_context=context)
    ranks = await router.choose_replicas(candidates, pending)
    assert context.should_backoff
    return [rank[0].replica_id.unique_id for rank in ranks]


async def test_one_conversation_has_one_order() -> None:
    assert await order(replicas(), key=b"k") == await order(replicas()[::-1], key=b"k")
    homes = {(await order(replicas(), key=bytes([n])))[0] for n in range(50)}
    assert homes == {*NAMES}


async def test_load_is_what_the_ingress_has_open_or_what_the_node_has_told() -> None:
    first, second, third = await order(replicas(), key=b"k")
    assert (await order(replicas(), key=b"k", open={first: 9}))[0] == second
    assert (await order(replicas(**{first: {"open": 9}}), key=b"k"))[0] == second
    told = {second: {"open": 9}, third: {"open": 9}}
    assert (await order(replicas(**told), key=b"k", open={first: 9}))[0] == first


async def test_a_node_that_is_not_ready_comes_last() -> None:
    first, second, third = await order(replicas(), key=b"k")
    stats = {first: {"ready": False, "open": 0}}
    assert await order(replicas(**stats), key=b"k") == [second, third, first]


async def test_nodes_to_avoid_are_left_out_unless_no_other_is_left() -> None:
    first, second, third = await order(replicas(), key=b"k")
    assert await order(replicas(), key=b"k", avoid=(first,)) == [second, third]
    assert len(await order(replicas(), key=b"k", avoid=NAMES)) == 1


async def test_only_nodes_that_have_a_record_are_asked_while_there_are_any() -> None:
    assert await order(replicas(), key=b"k", among=("b",)) == ["b"]
    assert len(await order(replicas(), key=b"k", among=("gone",))) == 3


async def test_a_request_without_a_prompt_goes_anywhere() -> None:
    assert sorted(await order(replicas(), key=b"")) == [*NAMES]


def test_a_bad_setting_is_named() -> None:
    with pytest.raises(ValueError, match="max_lead"):
        object.__new__(ConversationRouter).initialize_state(max_lead=0)
