"""Pools that change, in the simulation: a load that shifts is served at a higher rate."""

import json
from pathlib import Path

import pytest

from bench.harness.workload.traces import read_trace
from bench.predict.changing import Changing, ChangingPools, simulation
from bench.predict.flips import served
from bench.predict.goodput import Targets, Trace, cached_lens
from bench.predict.node import Level, Node, Request
from bench.predict.plan import found_for
from bench.predict.pools import predict
from bench.predict.sessions import Sessions
from bench.predict.shift import main as write_shift
from bench.predict.shift import shift
from bench.predict.tables import RESULTS, STEPS, Table
from bench.setups import Setup
from coordinator.core.pool_targets import PoolTargets

TARGETS = Targets(2.0, 0.02)
WANTED = PoolTargets(2.0, 0.02)
NODE = Table.read(STEPS).node()
LOCAL = Table.read(STEPS).node(spread=False)
"""Of GPUs that compute no steps together."""


def test_each_request_ends_with_all_its_tokens() -> None:
    due = [
        (each.at_s, Request(each.input_len, each.output_len)) for each in shift(12, 12)
    ]  # more than the pools keep the targets for
    pools = ChangingPools(NODE, Changing(4, 1, WANTED))
    pools.replay(due)
    assert pools.num_changes > 3
    for at_s, request in due:
        assert at_s < request.first_token_at <= request.ended_at
        assert request.num_new == 0


def test_a_load_that_shifts_is_served_at_a_higher_rate() -> None:
    planned = shift(10, 10)
    trace = Trace(planned, cached_lens(planned, 0))
    fixed = 0.0
    for setup in (Setup(0, 4), Setup(1, 3), Setup(2, 2)):
        # The search takes ten times as long as one replay, which shows that a rate is too high.
        if not fixed or TARGETS.met(trace.at(LOCAL, setup, fixed)):
            fixed = max(fixed, trace.goodput(LOCAL, setup, TARGETS).requests_per_s)
    for first_prefill in (1, 3):
        replayed = trace.at(LOCAL, Changing(4, first_prefill, WANTED), 1.2 * fixed)
        assert TARGETS.met(replayed)


@pytest.mark.parametrize(
    ("measured", "setup"),
    [("fixed", Setup(1, 1)), ("colocated", Setup(0, 2)), ("auto", Changing(2, 1, WANTED))],
)
def test_flips_at_full_load_are_predicted_as_measured(
    measured: str, setup: Setup | Changing
) -> None:
    result = json.loads((RESULTS / f"h200x2-flips-{measured}.json").read_text())
    found = served(NODE, setup, 128, TARGETS)
    assert found.output_tok_s == pytest.approx(result["results"]["run"]["output_tok_s"], rel=0.03)


def test_flips_at_full_load_are_served_faster_than_by_fixed_pools() -> None:
    fixed, auto = (
        served(NODE, setup, 128, TARGETS) for setup in (Setup(2, 2), Changing(4, 1, WANTED))
    )
    assert auto.output_tok_s > 1.2 * fixed.output_tok_s


@pytest.mark.parametrize(
    ("num_gpus", "at_once", "least"),
    [(2, 64, 1.0), (4, 32, 0.95), (4, 128, 1.0), (4, 256, 1.0), (8, 128, 0.98)],
)
def test_levels_of_equal_requests_lose_little_to_the_pools_that_they_begin_with(
    num_gpus: int, at_once: int, least: float
) -> None:
    num_prefill = num_gpus // 4 or 1
    set_ups = (
        Changing(num_gpus, num_prefill, PoolTargets()),
        Setup(num_prefill, num_gpus - num_prefill),
    )
    seconds = []
    for set_up in set_ups:
        requests = [Request(1024, 1024) for _ in range(2 * at_once)]
        pools = simulation(NODE, set_up)
        pools.keep_open(requests, at_once)
        seconds.append(max(request.ended_at for request in requests))
        assert isinstance(set_up, Setup) or pools.num_changes <= 3
    assert seconds[1] > least * seconds[0]


@pytest.mark.parametrize(
    ("num_gpus", "at_once", "least"), [(2, 4, 0.97), (2, 64, 0.98), (4, 16, 0.94), (8, 32, 0.92)]
)
def test_levels_get_nearly_as_much_as_from_colocated_workers(
    num_gpus: int, at_once: int, least: float
) -> None:
    """Sequences move to a worker that becomes free, and prompts too few for one go to all."""
    changing = Changing(num_gpus, num_gpus // 4 or 1, PoolTargets())
    seconds = []
    for set_up in (changing, Setup(0, num_gpus)):
        requests = [Request(1024, 1024) for _ in range(2 * at_once)]
        simulation(NODE, set_up).keep_open(requests, at_once)
        seconds.append(max(request.ended_at for request in requests))
    assert seconds[1] > least * seconds[0]


def test_a_plan_also_has_pools_that_follow_the_load(tmp_path: Path) -> None:
    write_shift(tmp_path / "shift.csv")
    planned = read_trace(tmp_path / "shift.csv")
    assert len(planned) == len(shift())
    trace = Trace(planned[:100], [0] * 100)
    assert "auto:2" in [each.name for each in found_for(trace, NODE, 2, TARGETS, auto=True)]
    assert "auto:2" not in [each.name for each in found_for(trace, NODE, 2, TARGETS)]


@pytest.mark.parametrize("at_once", [32, 64])
@pytest.mark.parametrize(("node", "least"), [(LOCAL, 0.97), (NODE, 0.96)], ids=["local", "spread"])
def test_sessions_get_as_much_as_from_colocated_workers(
    node: Node, least: float, at_once: int
) -> None:
    sessions = Sessions(at_once, 20, 57_600, new_len=6_400, output_len=400, shared=False)
    setups = Changing(2, 1, PoolTargets(2.0, 0.05)), Setup(0, 2)
    auto, fixed = (sessions.figures(node, setup) for setup in setups)
    assert auto.output_tok_s > least * fixed.output_tok_s


def test_sessions_of_fixed_set_ups_are_those_of_a_level() -> None:
    found = Sessions(8, 20, cached_len=0, new_len=1024, output_len=1024, shared=False).figures(
        NODE, Setup(1, 1)
    )
    level = predict(NODE, Setup(1, 1), Level(8, 8 * 20))
    assert abs(2 * found.output_tok_s / level.total_tok_s - 1) < 0.01


def test_steps_read_a_context_that_sessions_share_once() -> None:
    apart, shared = (
        Sessions(16, 3, 57_600, 6_400, 400, shared).figures(NODE, Setup.parse("colocated:2"))
        for shared in (False, True)
    )
    assert shared.tpot_p50_s < apart.tpot_p50_s
