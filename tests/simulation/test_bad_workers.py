"""Workers that are broken but alive, and requests that end their workers: only they suffer."""

import random
from collections.abc import Iterable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from coordinator.core.request import State
from coordinator.core.settings import BreakerSettings, RetryLimits
from tests.examples import examples
from tests.simulation.cluster import Cluster
from tests.simulation.fake_engine import POISON, expected_output
from tests.simulation.test_cluster import settle
from transport.wire.layout import PoolSize
from transport.wire.sampling import StopRule

SIZE = PoolSize(40, 4)
LARGE = PoolSize(400, 40)
Prompts = dict[str, tuple[tuple[int, ...], StopRule]]


def submit(cluster: Cluster, number: int, max_tokens: int = 4) -> Prompts:
    rng, prompts = cluster.rng, {}
    for _ in range(number):
        prompt = tuple(rng.randrange(64) for _ in range(rng.randint(1, 40)))
        stop = StopRule(rng.randint(1, max_tokens))
        prompts[cluster.submit(prompt, stop)] = prompt, stop
    return prompts


def finish(cluster: Cluster, max_events: int = 400_000) -> None:
    for _ in range(max_events):
        cluster.tick()
        if not cluster.open:
            return
    raise AssertionError(f"{len(cluster.open)} requests never ended")


def assert_right(cluster: Cluster, prompts: Prompts, but: Iterable[str] = ()) -> None:
    """Each ended once and with the right text, and nothing is held for any of them."""
    for request_id, (prompt, stop) in prompts.items():
        if request_id not in but:
            assert cluster.ends[request_id] == [State.FINISHED], cluster.codes[request_id]
            assert cluster.outputs[request_id] == expected_output(prompt, stop)


def assert_nothing_held(cluster: Cluster) -> None:
    settle(cluster)
    cluster.assert_all_free()
    for worker in cluster.registry.all():
        assert (worker.load.requests, worker.load.pending_pulls, worker.unconfirmed) == ({}, {}, {})
        assert worker.reserved_for is None


@pytest.mark.parametrize(
    ("role", "number"), [("colocated", examples(1_200)), ("prefill", 200), ("decode", 200)]
)
def test_a_worker_that_gives_only_nan_is_taken_out_and_fails_no_request(
    role: str, number: int
) -> None:
    cluster = Cluster(random.Random(1), lookahead=1, size=SIZE, max_faults=4)
    cluster.offer_ttl_s = 10_000.0
    if role != "colocated":
        cluster.add_worker("decode" if role == "prefill" else "prefill", LARGE)
    for _ in range(7):
        cluster.add_worker(role)
    bad = cluster.add_worker(role, nan=True)
    prompts = submit(cluster, number, max_tokens=3)
    finish(cluster)
    assert_right(cluster, prompts)
    breaker = cluster.registry.require(bad).breaker
    assert breaker.state != "closed"
    assert cluster.num_placed[bad] <= 30
    others = [w for w in cluster.registry.all() if w.instance != bad]
    assert all(worker.breaker.closed for worker in others)
    assert_nothing_held(cluster)


def test_prompts_that_give_nan_everywhere_open_no_breaker() -> None:
    cluster = Cluster(random.Random(2), lookahead=1, size=SIZE, max_faults=4)
    for _ in range(4):
        cluster.add_worker("colocated")
    prompts, poisonous = {}, []
    for _ in range(60):
        prompts |= submit(cluster, 3)
        poisonous.append(cluster.submit((1, POISON, 2), StopRule(4)))
    finish(cluster)
    assert_right(cluster, prompts)
    assert {cluster.codes[request_id] for request_id in poisonous} == {"not_finite"}
    assert all(worker.breaker.closed for worker in cluster.registry.all())
    assert_nothing_held(cluster)


def test_a_decode_worker_whose_copies_never_end_is_tried_by_few_requests() -> None:
    breakers = BreakerSettings(max_failed_probes=3)
    cluster = Cluster(
        random.Random(3), lookahead=1, size=SIZE, max_faults=4, pull_timeout_s=10.0,
        breakers=breakers,
    )  # fmt: skip
    cluster.offer_ttl_s = 10_000.0
    for _ in range(2):
        cluster.add_worker("prefill", LARGE)
    for _ in range(3):
        cluster.add_worker("decode")
    bad = cluster.add_worker("decode", stuck=True)
    # The first ones may all fail with the same peer, which parts the two and blames neither.
    for _ in range(3):
        prompts = submit(cluster, max(60, examples(100)))
        finish(cluster)
        assert_right(cluster, prompts)
    assert cluster.num_placed[bad] <= 12
    assert not cluster.registry.require(bad).breaker.closed
    cluster.kill_worker(bad)
    assert_nothing_held(cluster)


@pytest.mark.parametrize(
    "roles", [("prefill", "decode"), ("colocated",)], ids=["split", "colocated"]
)
@settings(max_examples=examples(12), deadline=None)
@given(seed=st.integers(0, 2**32))
@example(seed=97)  # others make room for a request that is quarantined before it is placed
def test_a_request_that_ends_its_workers_ends_three_at_most(
    roles: tuple[str, ...], seed: int
) -> None:
    rng = random.Random(seed)
    # Tokens under way are lost with their worker, and here they may be dozens: a request seems to
    # have got further between two deaths at the same length.
    retries = RetryLimits(pass_len=100)
    cluster = Cluster(
        rng, lookahead=rng.randint(0, 1), size=SIZE, dies_at=rng.randint(1, 80), retries=retries
    )
    for role in roles:
        for _ in range(rng.randint(1, 4)):
            cluster.add_worker(role)
    prompts = submit(cluster, rng.randint(0, 12), max_tokens=60)
    poison = cluster.submit((POISON,), StopRule(100))
    prompts |= submit(cluster, rng.randint(0, 12), max_tokens=60)
    finish(cluster)
    assert (cluster.ends[poison], cluster.codes[poison]) == ([State.FAILED], "poison_request")
    assert cluster.num_deaths[poison] == 3
    assert_right(cluster, prompts)
    assert_nothing_held(cluster)
