"""The capacity planner: the goodput of set-ups by a trace, and the command ``baton plan``."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench.harness.workload.plan import Planned
from bench.predict.__main__ import compared
from bench.predict.goodput import Targets, Trace, cached_lens
from bench.predict.node import Level, Node, Request
from bench.predict.plan import fewest_gpus, found_for
from bench.predict.pools import Simulation, predict
from bench.predict.steps import Local
from bench.predict.tables import RESULTS, Table
from bench.setups import Setup
from deploy.cli import app

SAMPLES = Path(__file__).resolve().parents[2] / "bench" / "traces"
FLAT = Node([(1, 0.1), (8192, 0.1)], Local([(1, 0.01), (1000, 0.01)], full_size=False), 0, 0, 0)
"""Any batch of prompts takes 0.1 s, and any step 10 ms."""
EVENLY = [Planned(float(n), 100, 11) for n in range(50)]


def test_requests_of_a_plan_are_sent_at_their_times() -> None:
    first, second = Request(100, 11), Request(100, 11)
    Simulation(FLAT, Setup.parse("split:1+1")).replay([(1.0, first), (1.05, second)])
    assert (first.sent_at, second.sent_at) == (1.0, 1.05)
    assert first.ttft_s == pytest.approx(0.1)
    assert second.ttft_s == pytest.approx(0.15), "behind the first prompt"
    assert first.tpot_s == pytest.approx(0.01)


def test_a_long_prompt_takes_several_batches_beside_which_a_colocated_worker_decodes() -> None:
    """Three batches of 2,048 tokens, each behind a step of the sequence that is decoded."""
    running, long = Request(100, 101), Request(3 * 2_048, 1)
    Simulation(FLAT, Setup.parse("colocated:1")).replay([(0.0, running), (0.2, long)])
    assert long.ttft_s == pytest.approx(3 * (0.01 + 0.1))
    assert running.ended_at == pytest.approx(0.1 + 100 * 0.01 + 3 * 0.1)


def test_cached_tokens_are_not_computed() -> None:
    slow = Node([(1, 0.0), (8192, 8.192)], FLAT.steps, 0, 0, 0)
    request = Request(4_000, 1, cached_len=3_000)
    Simulation(slow, Setup.parse("split:1+1")).replay([(0.0, request)])
    assert request.ttft_s == pytest.approx(1.0, rel=1e-3)


def test_the_block_used_least_recently_leaves_the_cache_first() -> None:
    def of(*blocks: int) -> Planned:
        return Planned(0.0, 4 * len(blocks), 1, blocks, 4)

    plan = [of(1, 2), of(3), of(1, 2), of(4), of(1, 3)]
    assert cached_lens(plan, 1000) == [0, 0, 7, 0, 7]
    assert cached_lens(plan, 12) == [0, 0, 7, 0, 4], "3 made room for 4"
    assert cached_lens(plan, 0) == [0] * 5


def test_goodput_is_the_rate_at_which_a_prompt_begins_to_wait() -> None:
    """One prefill worker computes ten prompts a second, one after the other."""
    alone = Trace(EVENLY, [0] * len(EVENLY))
    found = alone.goodput(FLAT, Setup.parse("split:1+1"), Targets(0.101, 0.02, 1.0))
    assert found.requests_per_s == pytest.approx(10.0, rel=0.03)
    assert found.output_tok_s == pytest.approx(110.0, rel=0.03)
    assert found.ttft_p90_s == pytest.approx(0.1, rel=0.01)
    twice = alone.goodput(FLAT, Setup.parse("split:2+1"), Targets(0.101, 0.02, 1.0))
    assert twice.requests_per_s == pytest.approx(20.0, rel=0.03)
    never = alone.goodput(FLAT, Setup.parse("split:1+1"), Targets(0.09, 0.02))
    assert never.requests_per_s == 0.0


def test_the_best_set_up_is_first_and_slower_times_give_less() -> None:
    trace = Trace(EVENLY, [0] * len(EVENLY))
    found = found_for(trace, FLAT, 3, Targets(0.2, 0.05))
    assert {each.name for each in found} == {"colocated:3", "split:1+2", "split:2+1"}
    rates = [goodput.requests_per_s for goodput, _ in found.values()]
    assert rates == sorted(rates, reverse=True)
    assert all(slower.requests_per_s < goodput.requests_per_s for goodput, slower in found.values())


def test_the_fewest_gpus_of_a_rate() -> None:
    trace, targets = Trace(EVENLY, [0] * len(EVENLY)), Targets(0.101, 0.011, 1.0)
    num_gpus, found = fewest_gpus(trace, FLAT.slower(0.9), 4, targets, 15.0)
    assert num_gpus == 3
    assert next(iter(found)).name == "split:2+1"
    with pytest.raises(ValueError, match=r"--rate: 2 GPUs serve .* not 15"):
        fewest_gpus(trace, FLAT.slower(0.9), 2, targets, 15.0)


def test_long_prompts_are_predicted_as_measured() -> None:
    node = Table.read().node()
    measured = json.loads((RESULTS / "h200-long.json").read_text())["long_prompts"]
    length = measured["input_len"]
    predicted = predict(node, Setup.parse("split:1+1"), Level(1, 1, length, 1))
    assert predicted.ttft_p50_ms == pytest.approx(1e3 * length / measured["tokens_per_s"], rel=0.01)
    for setup, name in (("split:1+1", "h200-split-1-1-8192"), ("split:1+3", "h200-split-1-3-8192")):
        document = json.loads((RESULTS / f"{name}.json").read_text())
        ratios = compared(node, Setup.parse(setup), document)
        assert ratios
        assert all(0.96 < ratio < 1.04 for ratio in ratios.values()), ratios


def test_a_table_of_fp8_has_the_bytes_of_fp8() -> None:
    local = Table.read([RESULTS / "h200-step-fp8-256-3.json"]).local
    assert local.of(64) == pytest.approx(11.73e-3)
    assert local.of(64) < local.of(128) < local.of(256)
    assert local.of(128) < Table.read().local.of(128)


def test_the_command_shows_a_table_and_writes_it(tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    trace = str(SAMPLES / "sample_mooncake.jsonl")
    arguments = ["plan", "--trace", trace, "--gpus", "2", "--target-ttft-ms", "5000"]
    ended = CliRunner().invoke(app, [*arguments, "--out", str(out)])
    assert ended.exit_code == 0, ended.output
    assert "split:1+1" in ended.output
    assert "colocated:2" in ended.output
    found = json.loads(out.read_text())
    assert found["kind"] == "plan"
    assert set(found["results"]) == {"split:1+1", "colocated:2"}
    asked = CliRunner().invoke(app, [*arguments, "--rate", "0.01"])
    assert "0.01 requests a second take 1 GPU\n" in asked.output


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--gpus", "0", "--gpus: 0"),
        ("--gpus", "65", "--gpus: 65"),
        ("--target-ttft-ms", "nan", "--target-ttft-ms: nan"),
        ("--target-tpot-ms", "0", "--target-tpot-ms: 0"),
        ("--share", "1.5", "--share: 1.5"),
        ("--rate", "nan", "--rate: nan"),
        ("--requests", "1", "--requests: 1"),
        ("--trace", "missing.jsonl", "missing.jsonl"),
    ],
)
def test_a_bad_setting_is_named(option: str, value: str, says: str) -> None:
    trace = str(SAMPLES / "sample_azure.csv")
    ended = CliRunner().invoke(app, ["plan", "--trace", trace, option, value], terminal_width=200)
    assert ended.exit_code == 2
    assert says in ended.output
