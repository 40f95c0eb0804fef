"""Whatever dies, aborts or comes late: every text exact, one end each, nothing leaked."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.core.request import State
from coordinator.core.settings import HubSettings, RetryLimits
from tests.examples import examples
from tests.simulation.cluster import Cluster
from tests.simulation.fake_engine import EOS, expected_output
from transport.wire.layout import PoolSize
from transport.wire.sampling import StopRule

MAX_EVENTS = 200_000
LENIENT = RetryLimits(num_deaths=10_000, max_losses=10_000)


@pytest.mark.parametrize(
    "roles", [("prefill", "decode"), ("colocated",)], ids=["split", "colocated"]
)
@settings(max_examples=examples(36), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_every_request_ends_once_with_the_right_text(roles: tuple[str, ...], seed: int) -> None:
    run_scenario(random.Random(seed), roles)


@settings(max_examples=examples(48), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_decode_workers_stand_in_while_prefill_workers_are_away(seed: int) -> None:
    run_scenario(random.Random(seed), ("prefill", "decode"), max_away=6_000)


def draw_prompt(rng: random.Random, earlier: list, longest: int) -> tuple[int, ...]:
    """A new one; or one that begins as an earlier one did, or goes on where its answer ended."""
    begin: tuple[int, ...] = ()
    if earlier and rng.random() < 0.8:
        prompt, stop = rng.choice(earlier)
        whole = (*prompt, *expected_output(prompt, stop))
        cut = rng.choice([len(prompt), len(whole), len(whole), rng.randint(1, len(whole))])
        begin = whole[:cut][: longest - 1]
    most = rng.choice([20, 150, longest - len(begin)])
    return (*begin, *(rng.randrange(64) for _ in range(rng.randint(1, most))))[:longest]


def run_scenario(rng: random.Random, roles: tuple[str, ...], max_away: int = 0) -> None:
    """Workers that are killed, or drain and leave, are replaced ``max_away`` events later at most;
    with any, mostly prefill workers, and there are few."""
    size = PoolSize(
        num_pages=rng.choice([14, 18, 25, 40, 60, 120]), num_state_slots=rng.randint(2, 16)
    )
    blamed = rng.random() < 0.5  # for the deaths of workers, which are none of their doing here
    nan_share = rng.choice([0.0, 0.0, 0.005, 0.02])
    cluster = Cluster(
        rng, lookahead=rng.randint(0, 1), size=size, retries=None if blamed else LENIENT,
        nan_share=nan_share, pull_timeout_s=rng.choice([0.05, 10_000.0]),
    )  # fmt: skip
    for role in roles:
        for _ in range(1 if max_away and role == "prefill" else rng.randint(1, 3)):
            cluster.add_worker(role)
    prompts, cancelled = {}, set()
    longest = 150 if size.num_pages < 25 else rng.choice([150, 320])
    away = Away(cluster, max_away)
    for _ in range(MAX_EVENTS):
        if len(prompts) < 25 and rng.random() < 0.01:
            for nth in range(min(rng.choice([1, 1, 5]), 25 - len(prompts))):
                known = list(prompts.values())[-1 if nth else 0 :]
                prompt = draw_prompt(rng, known, longest)
                eos = (EOS,) if rng.random() < 0.7 else ()
                stop = StopRule(rng.randint(1, 60), stop_token_ids=eos)
                prompts[cluster.submit(prompt, stop)] = prompt, stop
        elif cluster.open and rng.random() < 0.002:
            victim = rng.choice(list(cluster.open))
            cancelled.add(victim)
            cluster.cancel(victim)
        elif rng.random() < (0.002 if max_away else 0.0007):
            away.send()
        away.back()
        cluster.tick()
        if len(prompts) == 25 and not cluster.open:
            break
    assert not cluster.open, f"{len(cluster.open)} requests never ended"
    for request_id, (prompt, stop) in prompts.items():
        expected = expected_output(prompt, stop)
        output = cluster.outputs[request_id]
        if request_id in cancelled:
            assert cluster.ends[request_id] == [State.CANCELLED]
            assert output == expected[: len(output)]
        elif nan_share and cluster.codes[request_id] == "not_finite":
            assert cluster.ends[request_id] == [State.FAILED]
            assert output == expected[: len(output)]
        elif blamed and cluster.ends[request_id] == [State.FAILED]:
            assert cluster.codes[request_id] in ("poison_request", "worker_lost")
            assert cluster.num_deaths[request_id] >= 3
            assert output == expected[: len(output)]
        else:
            assert cluster.ends[request_id] == [State.FINISHED]
            assert output == expected
    away.back(everyone=True)
    settle(cluster)
    cluster.assert_all_free()


@pytest.mark.parametrize(
    "roles", [("prefill", "decode"), ("colocated",)], ids=["split", "colocated"]
)
@settings(max_examples=examples(12), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_what_only_a_lost_worker_can_hold_waits_until_a_worker_as_large_joins(
    roles: tuple[str, ...], seed: int
) -> None:
    rng = random.Random(seed)
    returns = rng.random() < 0.7
    settings = HubSettings(queue_timeout_s=10.0)
    cluster = Cluster(rng, lookahead=rng.randint(0, 1), size=PoolSize(40, 4), settings=settings)
    *others, role = roles
    for other in others:
        cluster.add_worker(other)
    large = cluster.add_worker(role)
    prompts = {}
    for _ in range(8):
        prompt = tuple(rng.randrange(64) for _ in range(rng.randint(1, 300)))
        stop = StopRule(rng.randint(1, 100))
        prompts[cluster.submit(prompt, stop)] = prompt, stop
    for _ in range(rng.randint(0, 200)):
        cluster.tick()
    cluster.add_worker(role, PoolSize(10, 4))
    for _ in range(rng.randint(0, 200)):
        cluster.tick()
    open_before = dict(cluster.open)
    cluster.kill_worker(large)
    for _ in range(rng.randint(0, 5_000)):
        cluster.tick()
    if returns:
        cluster.add_worker(role)
    for _ in range(40_000):
        cluster.tick()
        if not cluster.open:
            break
    assert not cluster.open, f"{len(cluster.open)} requests never ended"
    for request_id, (prompt, stop) in prompts.items():
        expected = expected_output(prompt, stop)
        fits = len(prompt) + stop.max_tokens - 1 <= 10 * 16
        if fits or returns or request_id not in open_before:
            assert cluster.ends[request_id] == [State.FINISHED]
            assert cluster.outputs[request_id] == expected
        elif cluster.ends[request_id] == [State.FAILED]:
            assert cluster.codes[request_id] == "queue_timeout"
            assert cluster.outputs[request_id] == expected[: len(cluster.outputs[request_id])]
        else:  # its last token came from a prefill worker
            assert cluster.ends[request_id] == [State.FINISHED]
            assert cluster.outputs[request_id] == expected


class Away:
    """Workers that are gone, and when each is replaced, in events from now."""

    def __init__(self, cluster: Cluster, max_away: int) -> None:
        self._cluster = cluster
        self._max = max_away
        self._returns: list[tuple[int, str]] = []
        self._draining: list[tuple[int, str]] = []
        self._now = 0

    def send(self) -> None:
        """Kill a worker, or, where it may stay away, have it drain."""
        cluster, rng = self._cluster, self._cluster.rng
        nodes = [name for name in cluster.nodes if not cluster.registry.require(name).draining]
        if self._max and rng.random() < 0.7:
            nodes = [name for name in nodes if name.startswith("prefill")]
        if not nodes:
            return
        instance = rng.choice(nodes)
        if self._max and rng.random() < 0.4:
            cluster.drain_worker(instance)
            self._draining.append((self._now + rng.randint(0, 1_000), instance))
        else:
            cluster.kill_worker(instance)
            self._replace_later(instance)

    def back(self, *, everyone: bool = False) -> None:
        """Stop what has drained for long enough, and start what was away for long enough."""
        self._now += 1
        for at, instance in self._draining.copy():
            if at <= self._now or everyone:
                self._draining.remove((at, instance))
                if instance in self._cluster.nodes:
                    self._cluster.stop_worker(instance)
                self._replace_later(instance)
        for at, role in self._returns.copy():
            if at <= self._now or everyone:
                self._returns.remove((at, role))
                self._cluster.add_worker(role)

    def _replace_later(self, instance: str) -> None:
        wait = self._cluster.rng.randint(0, self._max) if self._max else 0
        self._returns.append((self._now + wait, instance.partition("-")[0]))


def settle(cluster: Cluster) -> None:
    """Deliver all that is under way, so that the books can be looked at."""
    for _ in range(20_000):
        cluster.tick()
        if all(
            not node.inbox and not node.engine.queue and not (node.copies and node.copies.queue)
            for node in cluster.nodes.values()
        ) and all(node.pool.empty for node in cluster.nodes.values()):
            return
    raise AssertionError("the cluster never became idle")
