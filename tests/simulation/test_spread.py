"""Workers that compute steps together, and die, stall, drain, join or come late at any point: every
text is the one that a lone engine gives, each request ends once, and nothing is leaked."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.core.request import State
from tests.examples import examples
from tests.simulation.fake_engine import EOS, expected_output
from tests.simulation.spread_cluster import SpreadCluster
from tests.simulation.test_cluster import LENIENT, MAX_EVENTS, Away, draw_prompt, settle
from tests.simulation.test_pools import Restless
from transport.wire.layout import PoolSize
from transport.wire.sampling import StopRule

ROLES = pytest.mark.parametrize(
    "roles",
    [("prefill", "decode"), ("colocated",), ("any", "any")],
    ids=["split", "colocated", "any role"],
)
NUM_REQUESTS = 40
CHANGES = 0.002
"""Share of the events in which other pools are asked for."""
FIRST_SEEDS = {
    ("prefill", "decode"): (44, 56, 59),
    ("colocated",): (11, 25, 30),
    ("any", "any"): (0, 30, 41),
}
"""By roles, seeds with groups that are idle for long enough to time their steps. Few are: where a
change leaves these without, others follow."""


@ROLES
@settings(max_examples=examples(16), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_texts_do_not_depend_on_what_becomes_of_a_group(roles: tuple[str, ...], seed: int) -> None:
    run_scenario(random.Random(seed), roles, disturbances=0.001)


@ROLES
def test_many_steps_are_computed_together_and_some_are_taken_back(roles: tuple[str, ...]) -> None:
    computed = void = lent = measured = 0
    first = FIRST_SEEDS[roles]
    for seed in sorted(range(60), key=lambda seed: seed not in first):
        enough = computed > 300 and void > 5 and (lent > 60 or roles == ("colocated",))
        if seed not in first and enough and measured > 3:
            break
        cluster = run_scenario(random.Random(seed), roles, disturbances=0.001)
        computed += cluster.exchange.num_computed
        void += cluster.exchange.num_void
        lent += cluster.exchange.num_lent
        measured += cluster.num_measured
    assert computed > 300
    assert void > 5
    assert lent > 60 or roles == ("colocated",)
    assert measured > 3, "groups have timed their steps, and decided by these times"


class RestlessPools(SpreadCluster):
    """Its workers take any role, and its pools change at random. Prompts and sequences cross their
    border in half of the runs."""

    def __init__(self, rng: random.Random, **options) -> None:
        soft = Restless(rng, 0.4) if rng.random() < 0.5 else None
        super().__init__(rng, soft=soft, **options)

    def add_worker(self, role: str, *args, **options) -> str:
        return super().add_worker(role, *args, any_role=True, **options)

    def tick(self) -> None:
        super().tick()
        if self.rng.random() < CHANGES:
            if (here := len(self.nodes)) > 1:
                prefill = self.rng.randint(1, here - 1)
                self.change_pools(prefill, here - prefill)
        elif self.rng.random() < CHANGES:
            self.restore_pools()


def run_scenario(
    rng: random.Random, roles: tuple[str, ...], *, disturbances: float
) -> SpreadCluster:
    size = PoolSize(num_pages=rng.choice([25, 60, 120]), num_state_slots=rng.randint(4, 16))
    kind = RestlessPools if "any" in roles else SpreadCluster
    cluster = kind(rng, lookahead=rng.randint(0, 1), size=size, retries=LENIENT)
    for role in ("prefill", "decode") if "any" in roles else roles:
        least, most = {"prefill": (1, 2), "decode": (1, 4), "colocated": (2, 4)}[role]
        for _ in range(rng.randint(least, most)):
            cluster.add_worker(role)
    away = Away(cluster, 500)

    def disturb() -> None:
        if rng.random() < 0.5 and cluster.nodes:
            cluster.stall(rng.choice(list(cluster.nodes)), rng.choice([0.1, 1.0, 5.0]))
        else:
            away.send()

    cluster.disturb = disturb
    prompts, cancelled = {}, set()
    for _ in range(MAX_EVENTS):
        if len(prompts) < NUM_REQUESTS and rng.random() < 0.02:
            prompt = draw_prompt(rng, list(prompts.values())[-1:], 150)
            eos = (EOS,) if rng.random() < 0.5 else ()
            stop = StopRule(rng.randint(1, 60), stop_token_ids=eos)
            prompts[cluster.submit(prompt, stop)] = prompt, stop
        elif cluster.open and rng.random() < 0.002:
            victim = rng.choice(list(cluster.open))
            cancelled.add(victim)
            cluster.cancel(victim)
        elif rng.random() < disturbances:
            disturb()
        away.back()
        cluster.tick()
        if len(prompts) == NUM_REQUESTS and not cluster.open:
            break
    assert not cluster.open, f"{len(cluster.open)} requests never ended"
    for request_id, (prompt, stop) in prompts.items():
        expected, output = expected_output(prompt, stop), cluster.outputs[request_id]
        if request_id in cancelled:
            assert cluster.ends[request_id] == [State.CANCELLED]
            assert output == expected[: len(output)]
        else:
            assert cluster.ends[request_id] == [State.FINISHED]
            assert output == expected
    cluster.disturb = lambda: None
    away.back(everyone=True)
    cluster.end_trials()
    settle(cluster)
    cluster.assert_all_free()
    return cluster
