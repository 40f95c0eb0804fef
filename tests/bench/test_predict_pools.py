"""The arithmetic of what a set-up should give, on a GPU whose figures are round numbers."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from bench import predict_pools as p

GPU = p.Gpu([(1, 0.001), (3, 0.003)], [(1, 1024 / 0.008), (64, 1024 / 0.008)])


def test_between_two_points_and_beyond_them() -> None:
    assert p.between(GPU.step_s, 2) == pytest.approx(0.002)
    assert p.between(GPU.step_s, 0.5) == 0.001
    assert p.between(GPU.step_s, 9) == 0.003


def test_requests_are_spread_evenly_and_those_of_a_gpu_begin_together() -> None:
    two = p.OVERHEAD_S + 2 * 0.008 + 1023 * 0.002
    one = p.OVERHEAD_S + 0.008 + 1023 * 0.001
    expected = 2 * 2048 / two + 2 * (1 * 2048 / one)
    assert p.total_tok_s(GPU, p.Setup(1, 3), 4) == pytest.approx(expected)
    assert p.total_tok_s(GPU, p.Setup(0, 3), 1) == pytest.approx(2048 / one)


def test_when_all_begin_at_once_the_prefill_pool_has_them_all_before_it() -> None:
    steps = 1023 * 0.003
    split = p.OVERHEAD_S + 32 * 0.008 + steps
    both = p.OVERHEAD_S + 16 * 0.008 + steps
    assert p.total_tok_s(GPU, p.Setup(2, 6), 64) == pytest.approx(64 * 2048 / split)
    assert p.total_tok_s(GPU, p.Setup(0, 4), 64) == pytest.approx(64 * 2048 / both)


@pytest.mark.parametrize("text", ["split:0+3", "both:0", "four", "split:1"])
def test_a_set_up_that_means_nothing_is_named(text: str) -> None:
    with pytest.raises(ValueError, match=text.replace("+", r"\+")):
        p.Setup.parse(text)


@pytest.mark.parametrize(
    ("step", "setups", "low"),
    [
        # The engine's step when the pools were measured.
        ("h200-step-pools.json", {"both:4": "h200-both-4.json", "split:2+2": "h200-split-2-2.json"},
         0.97),
        ("h200-prompts.json", {"both:2": "h200-both-2.json"}, 0.99),
    ],
)  # fmt: skip
def test_the_committed_results_are_within_what_the_page_says(
    step: str, setups: dict[str, str], low: float, tmp_path: Path
) -> None:
    app = typer.Typer()
    app.command()(p.main)
    results = p.ROOT / "bench/results"
    arguments = ["--step", str(results / step)]
    for setup, measured in setups.items():
        arguments += ["--setup", setup, "--measured", str(results / measured)]
    told = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "out.json")])
    assert told.exit_code == 0, told.output
    for found in json.loads((tmp_path / "out.json").read_text())["setups"].values():
        assert all(low <= r <= 1.01 for r in found["measured_over_predicted"].values())
