"""The pools: who is assigned which role, when a change is done, and what is refused."""

import asyncio

import pytest

from coordinator.core.contract import PoolChange, PoolsSuperseded
from coordinator.core.pools import PATIENCE_S, Pools, Size
from coordinator.core.request import State
from coordinator.core.workers.registry import Registry
from tests.coordinator.desk import Desk
from transport.wire.messages import Move, PeerTested, Role, Settled
from transport.wire.offers import Offer

NAMES = ("p-1", "p-2", "d-1", "d-2")


class Site:
    """A desk whose workers take any role."""

    def __init__(self, *names: str, any_role: bool = True, patience_s: float = PATIENCE_S) -> None:
        self.desk = Desk((), any_role=any_role)
        self.changes: list[tuple[str, Role, Role]] = []
        self.pools = Pools(self.desk.registry, self._changed, patience_s)
        for name in names or NAMES:
            self.desk.join(name)
        for puller in names or NAMES:
            for peer in names or NAMES:
                if peer != puller:
                    self.desk.life.peer_tested(puller, PeerTested(peer, 100, 0.1, ""))

    def _changed(self, worker, before: Role) -> None:
        self.changes.append((worker.instance, before, worker.role))
        self.desk.life.roles_changed()

    @property
    def registry(self) -> Registry:
        return self.desk.registry

    def roles(self) -> dict[str, str]:
        return {worker.instance: worker.role for worker in self.registry.all()}

    def set(self, prefill: int, decode: int) -> PoolChange:
        return asyncio.run(self.pools.set(prefill, decode))


def test_the_idlest_worker_changes_its_role() -> None:
    site = Site()
    busy = site.desk.submit("r")
    assert busy.prefill_worker == "p-1"
    change = site.set(1, 3)
    assert change.changed == {"p-2": "prefill → decode"}
    assert site.changes == [("p-2", "prefill", "decode")]
    assert site.registry.require("p-2").role == "decode"
    assert (change.num_moved, change.num_left) == (0, 0)


def test_a_new_prefill_worker_gets_prompts_at_once_and_a_new_decode_worker_none() -> None:
    site = Site()
    site.set(3, 1)
    placed = {site.desk.submit(f"r{i}").prefill_worker for i in range(3)}
    assert placed == {name for name, role in site.roles().items() if role == "prefill"}


def test_what_a_worker_decodes_moves_before_the_change_is_done() -> None:
    site = Site("p-1", "d-1", "d-2")
    desk = site.desk
    request = desk.submit("r")
    desk.prefill(request)
    desk.land(request)
    assert request.state is State.DECODING
    source, other = request.decode_worker, {"d-1": "d-2", "d-2": "d-1"}[request.decode_worker]
    second = desk.submit("s")
    desk.prefill(second)
    desk.land(second)
    assert second.decode_worker == other
    desk.submit("t")

    async def change() -> PoolChange:
        changing = asyncio.create_task(site.pools.set(2, 1))
        await asyncio.sleep(0)
        assert not changing.done(), "one sequence is decoded by a prefill worker"
        left = next(w for w in site.registry.of("prefill") if w.instance != "p-1").instance
        moving = request if request.decode_worker == left else second
        assert any(isinstance(message, Move) for _, message in desk.sent())
        offer = Offer(left, (0,), 2, 3, moving.num_tokens - 1)
        desk.life.settled(left, Settled(moving.request_id, moving.attempt, offer))
        desk.land(moving)
        assert moving.decode_worker not in ("", left)
        site.pools.look()
        return await changing

    found = asyncio.run(change())
    assert (found.num_moved, found.num_left) == (1, 0)
    assert source in found.workers


def test_an_offer_of_the_only_decode_worker_is_continued_there() -> None:
    site = Site("p-1", "p-2")
    request = site.desk.submit("r")
    site.registry.require(request.prefill_worker).role = "decode"
    site.desk.prefill(request)
    assert request.decode_worker == request.prefill_worker


@pytest.mark.parametrize(
    ("prefill", "decode", "problem"),
    [
        (-1, 5, "prefill: -1 is not 0 or more"),
        (4, 0, "decode: 0 is not 1 or more"),
        (3, 2, "5 workers are asked for, 4 take work"),
        (1, 2, "3 workers are asked for, 4 take work"),
    ],
)
def test_impossible_pools_are_refused_by_number(prefill: int, decode: int, problem: str) -> None:
    site = Site()
    with pytest.raises(ValueError, match=problem):
        site.set(prefill, decode)
    assert not site.changes


def test_workers_of_one_role_cannot_change() -> None:
    with pytest.raises(ValueError, match="prefill: 2 workers cannot change their role"):
        Site(any_role=False).set(1, 3)


def test_colocated_workers_have_no_pools() -> None:
    with pytest.raises(ValueError, match="colocated workers do both"):
        Site("b-1", "b-2", any_role=False).set(1, 1)


def test_the_later_change_wins_and_the_earlier_is_told() -> None:
    site = Site("p-1", "d-1", "d-2", patience_s=0.1)  # no worker carries its moves out
    for name in ("r", "s"):
        request = site.desk.submit(name)
        site.desk.prefill(request)
        site.desk.land(request)

    async def both() -> None:
        earlier = asyncio.create_task(site.pools.set(2, 1))
        await asyncio.sleep(0)
        await site.pools.set(1, 2)
        with pytest.raises(PoolsSuperseded, match="1 prefill and 2 decode"):
            await earlier

    asyncio.run(both())
    assert sorted(site.roles().values()) == ["decode", "decode", "prefill"]


def test_a_lost_pool_is_filled_from_the_other_and_given_back() -> None:
    site = Site("p-1", "p-2", "d-1")
    site.desk.life.worker_lost("d-1")
    site.pools.restore()
    assert sorted(site.roles().values()) == ["decode", "prefill"]
    site.desk.join("d-3")
    site.pools.restore()
    assert site.roles() == {"p-1": "prefill", "p-2": "prefill", "d-3": "decode"}


def test_a_worker_that_comes_back_takes_the_role_that_is_missing() -> None:
    site = Site()
    site.set(3, 1)
    lost = next(w.instance for w in site.registry.of("prefill") if w.hello.role == "decode")
    site.desk.life.worker_lost(lost)
    site.pools.restore()
    assert sorted(site.roles().values()) == ["decode", "prefill", "prefill"]
    site.desk.join("d-9")
    site.pools.restore()
    assert sorted(site.roles().values()) == ["decode", "prefill", "prefill", "prefill"]


def test_without_a_prefill_worker_all_compute_prompts_and_decode() -> None:
    site = Site(patience_s=0.1)
    offered = site.desk.submit("offered")
    assert not site.pools.all_do_both
    change = site.set(0, 4)
    assert set(change.workers.values()) == {"decode"}
    assert site.pools.all_do_both
    site.pools.restore()
    assert set(site.roles().values()) == {"decode"}, "none is missing"
    site.desk.prefill(offered)
    assert offered.decode_worker, "what was computed under the old roles is handed off"
    requests = [site.desk.submit(f"r-{i}") for i in range(3)]
    for request in requests:
        site.desk.begin(request)
    assert {r.state for r in requests} == {State.DECODING}
    assert len({r.decode_worker for r in requests} | {offered.decode_worker}) == 4
    site.set(1, 3)
    assert not site.pools.all_do_both
    ((prefill, _),) = [each for each in site.roles().items() if each[1] == "prefill"]
    assert site.desk.submit("next").prefill_worker == prefill


def test_the_last_prefill_worker_decodes_too_while_no_decode_worker_is_left() -> None:
    site = Site("p-1", "d-1")
    site.desk.life.worker_lost("d-1")
    site.pools.restore()
    assert site.roles() == {"p-1": "decode"}
    request = site.desk.submit("r")
    site.desk.begin(request)
    assert request.decode_worker == "p-1"
    site.desk.join("d-2")
    site.pools.restore()
    assert sorted(site.roles().values()) == ["decode", "prefill"]


def test_pools_of_fixed_workers_are_left_alone() -> None:
    site = Site("p-1", "p-2", "d-1", any_role=False)
    site.desk.life.worker_lost("d-1")
    site.pools.restore()
    assert not site.changes


def test_a_size_is_told_in_words() -> None:
    assert str(Size(1, 3)) == "1 prefill and 3 decode"
