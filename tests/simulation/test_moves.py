"""Sequences that move: every text exact, one end each, nothing leaked, and nothing computed again.

Workers drain and take work again all the time, so their sequences go from one to the next, while
prompts, clients and dying workers come in between.
"""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.core.request import State
from coordinator.core.requests.balance import Balance
from tests.examples import examples
from tests.simulation.cluster import Cluster
from tests.simulation.fake_engine import EOS, expected_output
from tests.simulation.spread_cluster import SpreadCluster
from tests.simulation.test_cluster import LENIENT, MAX_EVENTS, draw_prompt, settle
from transport.wire.layout import PoolSize
from transport.wire.sampling import StopRule

NUM_REQUESTS = 20
SPLIT, COLOCATED = ("prefill", "decode", "decode", "decode"), ("colocated",) * 3


@pytest.mark.parametrize("roles", [SPLIT, COLOCATED], ids=["split", "colocated"])
@settings(max_examples=examples(12), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_sequences_that_move_have_the_right_text(roles: tuple[str, ...], seed: int) -> None:
    rng = random.Random(seed)
    run_scenario(rng, roles, Cluster, kills=rng.choice([0.0, 0.0005]))


@pytest.mark.parametrize("roles", [SPLIT, COLOCATED], ids=["split", "colocated"])
@settings(max_examples=examples(4), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_sequences_move_out_of_spread_steps(roles: tuple[str, ...], seed: int) -> None:
    rng = random.Random(seed)
    run_scenario(rng, roles, SpreadCluster, kills=rng.choice([0.0, 0.0005]))


@pytest.mark.parametrize("roles", [SPLIT, COLOCATED], ids=["split", "colocated"])
def test_many_move_and_none_is_computed_again(roles: tuple[str, ...]) -> None:
    num_moves = num_retries = 0
    for seed in range(examples(6)):
        cluster = run_scenario(random.Random(seed), roles, Cluster, kills=0.0, large=True)
        num_moves += cluster.num_moved["moved"]
        num_retries += cluster.num_retried
    assert num_moves > 60
    assert not num_retries


class Uneven(Cluster):
    """A cluster whose sequences move as soon as another worker has much less to decode."""

    def __init__(self, *args, **options) -> None:
        super().__init__(*args, **options)
        moves = self.lifecycle._moves
        moves._balances = {role: Balance(hold_s=0.0) for role in moves._balances}


@pytest.mark.parametrize("roles", [SPLIT, COLOCATED], ids=["split", "colocated"])
@settings(max_examples=examples(8), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_sequences_that_even_workers_out_have_the_right_text(
    roles: tuple[str, ...], seed: int
) -> None:
    rng = random.Random(seed)
    run_scenario(rng, roles, Uneven, kills=rng.choice([0.0, 0.0005]))


@pytest.mark.parametrize("roles", [SPLIT, COLOCATED], ids=["split", "colocated"])
def test_a_worker_that_joins_gets_sequences_of_the_others(roles: tuple[str, ...]) -> None:
    num_moved = 0
    for seed in range(examples(6)):
        rng = random.Random(seed)
        cluster = Uneven(rng, lookahead=rng.randint(0, 1), size=PoolSize(240, 20), retries=LENIENT)
        cluster.offer_ttl_s = cluster.pull_timeout_s = 10_000.0
        for role in roles[:-1]:
            cluster.add_worker(role)
        prompts = {}
        for _ in range(12):
            prompt, stop = draw_prompt(rng, [], 40), StopRule(rng.randint(150, 200))
            prompts[cluster.submit(prompt, stop)] = prompt, stop
        for event in range(MAX_EVENTS):
            if event == 400:
                cluster.add_worker(roles[-1])
            if not cluster.open:
                break
            cluster.tick()
        assert_right(cluster, prompts)
        assert not cluster.num_retried
        num_moved += cluster.num_moved["balance"]
    assert num_moved > 4


def assert_right(cluster: Cluster, prompts: dict[str, tuple[tuple[int, ...], StopRule]]) -> None:
    """Each text is the right one, and no memory is held."""
    for request_id, (prompt, stop) in prompts.items():
        assert cluster.outputs[request_id] == expected_output(prompt, stop)
    settle(cluster)
    cluster.assert_all_free()


def run_scenario(
    rng: random.Random,
    roles: tuple[str, ...],
    kind: type[Cluster],
    *,
    kills: float,
    large: bool = False,
    turns: bool = True,
) -> Cluster:
    """``large``: there is memory for all, and no copy takes too long. ``turns``: workers drain in
    turn."""
    size = PoolSize(240 if large else rng.choice([25, 60, 120]), 20 if large else 8)
    cluster = kind(rng, lookahead=rng.randint(0, 1), size=size, retries=LENIENT)
    if large:
        cluster.offer_ttl_s = cluster.pull_timeout_s = 10_000.0
    for role in roles:
        cluster.add_worker(role)
    prompts: dict[str, tuple[tuple[int, ...], StopRule]] = {}
    cancelled = set()
    for _ in range(MAX_EVENTS):
        if len(prompts) < NUM_REQUESTS and rng.random() < 0.02:
            prompt = draw_prompt(rng, list(prompts.values()), 150)
            stop = StopRule(rng.randint(1, 80), stop_token_ids=(EOS,) if rng.random() < 0.3 else ())
            prompts[cluster.submit(prompt, stop)] = prompt, stop
        elif cluster.open and rng.random() < 0.0005:
            victim = rng.choice(list(cluster.open))
            cancelled.add(victim)
            cluster.cancel(victim)
        elif turns and rng.random() < (0.03 if large else 0.01):
            turn_away(cluster)
        elif rng.random() < kills:
            victim = rng.choice(list(cluster.nodes))
            cluster.kill_worker(victim)
            cluster.add_worker(victim.partition("-")[0])
        cluster.tick()
        if len(prompts) == NUM_REQUESTS and not cluster.open:
            break
    assert not cluster.open, f"{len(cluster.open)} requests never ended"
    for request_id, (prompt, stop) in prompts.items():
        expected = expected_output(prompt, stop)
        output = cluster.outputs[request_id]
        if request_id in cancelled:
            assert output == expected[: len(output)]
        else:
            assert cluster.ends[request_id] == [State.FINISHED]
            assert output == expected
    settle(cluster)
    cluster.assert_all_free()
    return cluster


def turn_away(cluster: Cluster) -> None:
    """Let another worker drain, and those that drained take work again."""
    able = [name for name in cluster.nodes if not name.startswith("prefill")]
    for name in able:
        cluster.registry.require(name).draining = False
    cluster.drain_worker(cluster.rng.choice(able))


def tick_and_leave(cluster: Cluster) -> None:
    """Let workers that are empty, and have been dismissed, end."""
    cluster.tick()
    for instance in sorted(cluster.dismissed & cluster.nodes.keys()):
        if cluster.nodes[instance].pool.empty:
            cluster.stop_worker(instance)


def test_workers_that_all_drain_at_once_finish_what_they_have_begun() -> None:
    """A prompt whose handoff has not begun goes to a decode worker that drains as well."""
    for seed in range(examples(20)):
        rng = random.Random(seed)
        cluster = Cluster(rng, lookahead=rng.randint(0, 1), size=PoolSize(120, 8), retries=LENIENT)
        cluster.offer_ttl_s = cluster.pull_timeout_s = 10_000.0
        for role in ("prefill", "decode", "decode"):
            cluster.add_worker(role)
        for _ in range(12):
            cluster.submit(draw_prompt(rng, [], 100), StopRule(rng.randint(20, 80)))
            for _ in range(rng.randint(0, 60)):
                cluster.tick()
        for instance in rng.sample(list(cluster.nodes), k=3):
            cluster.drain_worker(instance)
            for _ in range(rng.choice([0, 1, 5, 20])):
                tick_and_leave(cluster)
        for _ in range(MAX_EVENTS):
            if not cluster.nodes:
                break
            tick_and_leave(cluster)
        held = {name: len(node.pool.held()) for name, node in cluster.nodes.items()}
        assert not held, "not dismissed, or not empty"


@pytest.mark.parametrize("roles", [SPLIT[:3], COLOCATED[:2]], ids=["split", "colocated"])
def test_long_answers_move_to_the_worker_that_has_pages(roles: tuple[str, ...]) -> None:
    """One worker has pages for its sequences' beginnings only, the other one for all."""
    num_moved = num_preempted = 0
    for seed in range(examples(8)):
        rng = random.Random(seed)
        cluster = Cluster(rng, lookahead=rng.randint(0, 1), size=PoolSize(240, 20), retries=LENIENT)
        cluster.offer_ttl_s = cluster.pull_timeout_s = 10_000.0
        for role in roles[:-1]:
            cluster.add_worker(role)
        cluster.add_worker(roles[-1], PoolSize(40, 20))
        prompts = {}
        for _ in range(12):
            prompt, stop = draw_prompt(rng, [], 40), StopRule(rng.randint(150, 250))
            prompts[cluster.submit(prompt, stop)] = prompt, stop
        for _ in range(MAX_EVENTS):
            if not cluster.open:
                break
            cluster.tick()
        assert_right(cluster, prompts)
        num_moved += cluster.num_moved["memory"]
        num_preempted += cluster.num_preempted
    assert num_moved > 1.5 * num_preempted, "27 are preempted without these moves"
