"""Roles that change: every text exact, one end each, nothing leaked, and nothing computed again.

Pools grow and shrink all the time, while prompts, clients and dying workers come in between.
"""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulation.cluster import Cluster
from tests.simulation.test_moves import run_scenario

ROLES = ("prefill", "prefill", "decode", "decode")
CHANGES = 0.01
"""Share of the events in which other pools are asked for."""


class Changing(Cluster):
    """A cluster whose workers take any role, and whose pools change at random."""

    def add_worker(self, role: str, *args, **options) -> str:
        return super().add_worker(role, *args, any_role=True, **options)

    def tick(self) -> None:
        super().tick()
        if len(self.nodes) == len(ROLES) and self.rng.random() < CHANGES:
            prefill = self.rng.randint(1, len(ROLES) - 1)
            self.change_pools(prefill, len(ROLES) - prefill)
        elif self.rng.random() < CHANGES:
            self.restore_pools()


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_sequences_of_changing_pools_have_the_right_text(seed: int) -> None:
    rng = random.Random(seed)
    run_scenario(rng, ROLES, Changing, kills=rng.choice([0.0, 0.0005]), turns=False)


def test_nothing_is_computed_again_for_a_change() -> None:
    num_changed = num_moves = 0
    for seed in range(8):
        rng = random.Random(seed)
        cluster = run_scenario(rng, ROLES, Changing, kills=0.0, large=True, turns=False)
        num_changed += cluster.num_changed
        num_moves += cluster.num_moved["moved"]
        assert not cluster.num_retried
    assert num_changed > 15
    assert num_moves > 15
