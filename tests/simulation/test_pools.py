"""Roles that change: every text exact, one end each, nothing leaked, and nothing computed again.

Pools grow and shrink all the time, while prompts, clients and dying workers come in between.
"""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.core.pool_meter import PoolMeter
from coordinator.core.pool_policy import LOOK_S
from coordinator.core.pool_targets import PoolTargets
from coordinator.core.pools_follow import PoolsThatFollow
from coordinator.core.soft_pools import SoftPools
from tests.examples import examples
from tests.simulation.cluster import Cluster, Node
from tests.simulation.test_moves import run_scenario
from transport.wire.messages import Prefilled, Tokens

ROLES = ("prefill", "prefill", "decode", "decode")
CHANGES = 0.01
"""Share of the events in which other pools are asked for."""
FASTER = 20
"""So much sooner than by its clock a cluster's pools follow: its runs are short."""


class Restless(SoftPools):
    """Lets prompts and sequences cross the border between the pools at random."""

    def __init__(self, rng: random.Random, share: float) -> None:
        super().__init__(PoolTargets(), PoolMeter())
        self._rng, self._share = rng, share

    def _yes(self, *_: object) -> bool:
        return self._rng.random() < self._share

    waits = may_help = helps = gathers = keeps = takes = releases = _yes


class Changing(Cluster):
    """A cluster whose workers take any role, and whose pools change at random. Prompts and
    sequences cross their border in half of the runs."""

    def __init__(self, rng: random.Random, *args, **options) -> None:
        soft = Restless(rng, 0.4) if rng.random() < 0.5 else None
        super().__init__(rng, *args, soft=soft, **options)

    def add_worker(self, role: str, *args, **options) -> str:
        return super().add_worker(role, *args, any_role=True, **options)

    def tick(self) -> None:
        super().tick()
        if len(self.nodes) == len(ROLES) and self.rng.random() < CHANGES:
            prefill = self.rng.randint(0, len(ROLES) - 1)
            self.change_pools(prefill, len(ROLES) - prefill)
        elif self.rng.random() < CHANGES:
            self.restore_pools()


class Following(Changing):
    """A cluster whose pools follow its load, with targets that it never keeps for long."""

    def __init__(self, *args, **options) -> None:
        super().__init__(*args, **options)
        targets = PoolTargets(ttft_s=0.1, tpot_s=0.02)
        self.follow = PoolsThatFollow(self.pools, targets, PoolMeter())
        self.looked_at = 0.0

    def _deliver(self, node: Node) -> None:
        message, worker = node.outbox[0], self.registry.get(node.hello.instance)
        if worker is not None and isinstance(message, Tokens):
            worker.note_step(message.tokens, FASTER * self.now)
        if worker is not None and isinstance(message, Prefilled):
            request = self.lifecycle.requests.get(message.token.request_id)
            if request is not None:
                num_tokens, assigned_at = request.num_tokens, FASTER * request.prefill_assigned_at
                worker.prompts.ended(
                    num_tokens, num_tokens, assigned_at, FASTER * self.now, alone=True
                )
        super()._deliver(node)

    def tick(self) -> None:
        Cluster.tick(self)
        now = FASTER * self.now
        if now - self.looked_at >= LOOK_S:
            self.looked_at, before = now, self.roles()
            self.follow.look(self.lifecycle.num_tokens_queued, now)
            self.num_changed += self.roles() != before
            self.restore_pools()

    def roles(self) -> list[str]:
        return [worker.role for worker in self.registry.all()]


@settings(max_examples=examples(12), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_sequences_of_pools_that_follow_have_the_right_text(seed: int) -> None:
    rng = random.Random(seed)
    run_scenario(rng, ROLES, Following, kills=rng.choice([0.0, 0.0005]), turns=False)


@settings(max_examples=examples(25), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_sequences_of_changing_pools_have_the_right_text(seed: int) -> None:
    rng = random.Random(seed)
    run_scenario(rng, ROLES, Changing, kills=rng.choice([0.0, 0.0005]), turns=False)


@pytest.mark.parametrize("kind", [Changing, Following])
def test_nothing_is_computed_again_for_a_change(kind: type[Cluster]) -> None:
    num_changed = num_moves = 0
    crossed: Counter[str] = Counter()
    for seed in range(max(8, examples(12))):
        rng = random.Random(seed)
        cluster = run_scenario(rng, ROLES, kind, kills=0.0, large=True, turns=False)
        num_changed += cluster.num_changed
        num_moves += cluster.num_moved["moved"]
        crossed += cluster.num_crossed
        assert not cluster.num_retried
    assert num_changed > 15
    assert num_moves > 15
    assert min(crossed["prompt"], crossed["sequence"]) > 5
