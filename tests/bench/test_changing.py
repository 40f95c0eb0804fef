"""Pools that change, in the simulation: a load that shifts is served at a higher rate."""

from pathlib import Path

import pytest

from bench.harness.workload.traces import read_trace
from bench.predict.changing import Changing, ChangingPools
from bench.predict.goodput import Targets, Trace, cached_lens
from bench.predict.node import Level, Request
from bench.predict.plan import found_for
from bench.predict.pools import predict
from bench.predict.sessions import Sessions
from bench.predict.shift import main as write_shift
from bench.predict.shift import shift
from bench.predict.tables import STEPS, Table
from bench.setups import Setup
from coordinator.core.pool_policy import PoolTargets

TARGETS = Targets(2.0, 0.02)
WANTED = PoolTargets(2.0, 0.02)
NODE = Table.read(STEPS).node()


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
    fixed = max(
        trace.goodput(NODE, setup, TARGETS).requests_per_s
        for setup in (Setup(0, 4), Setup(1, 3), Setup(2, 2))
    )
    for first_prefill in (1, 3):
        replayed = trace.at(NODE, Changing(4, first_prefill, WANTED), 1.2 * fixed)
        assert TARGETS.met(replayed)


def test_a_plan_also_has_pools_that_follow_the_load(tmp_path: Path) -> None:
    write_shift(tmp_path / "shift.csv")
    planned = read_trace(tmp_path / "shift.csv")
    assert len(planned) == len(shift())
    trace = Trace(planned[:100], [0] * 100)
    assert "auto:2" in [each.name for each in found_for(trace, NODE, 2, TARGETS, auto=True)]
    assert "auto:2" not in [each.name for each in found_for(trace, NODE, 2, TARGETS)]


@pytest.mark.parametrize("at_once", [32, 64])
def test_sessions_get_as_much_as_from_colocated_workers(at_once: int) -> None:
    sessions = Sessions(at_once, 20, 57_600, new_len=6_400, output_len=400, shared=False)
    setups = Changing(2, 1, PoolTargets(2.0, 0.05)), Setup(0, 2)
    auto, fixed = (sessions.figures(NODE, setup) for setup in setups)
    assert auto.output_tok_s > 0.97 * fixed.output_tok_s


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
