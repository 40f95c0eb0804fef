"""The arithmetic of what a set-up should give, on a GPU whose figures are round numbers."""

import json
from pathlib import Path

import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from bench import predict_pools as p

RESULTS = p.ROOT / "bench/results"
PREDICTED = RESULTS / "predicted-pools.json"

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


def predict(*arguments: str) -> Result:
    app = typer.Typer()
    app.command()(p.main)
    return CliRunner().invoke(app, list(arguments))


def files(measured: dict[str, str]) -> list[str]:
    """``--setup`` and ``--measured`` of each."""
    pairs = [("--setup", each, "--measured", f"{each}={RESULTS / file}")
             for each, file in measured.items()]  # fmt: skip
    return [word for pair in pairs for word in pair]


def test_a_result_stands_beside_the_set_up_it_is_named_with(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    told = predict("--setup", "both:4", *files({"both:2": "h200-both-2.json"}), "--out", str(out))
    assert told.exit_code == 0, told.output
    found = json.loads(out.read_text())
    assert "measured_over_predicted" not in found["setups"]["both:4"]
    assert found["setups"]["both:2"]["measured"] == "h200-both-2.json"
    assert found["setups"]["both:2"]["measured_over_predicted"]["32"] > 0.98
    assert found["environment"]["command"].startswith("python -m bench.predict_pools")


@pytest.mark.parametrize(
    ("measured", "said"),
    [
        (["both:2=h200-both-2.json"], "not SETUP=FILE"),
        (["h200-both-4.json"], "not SETUP=FILE"),
        (["both:4=h200-both-2.json"], "with 2 of 4 GPUs"),
        (["both:4=h200-step.json"], "not a result"),
        (["both:4=h200-both-4.json"] * 2, "two results of both:4"),
    ],
)
def test_a_result_that_cannot_be_of_the_set_up_is_refused(measured: list[str], said: str) -> None:
    given = [each.replace("h200", str(RESULTS / "h200")) for each in measured]
    told = predict("--setup", "both:4", *(word for each in given for word in ("--measured", each)))
    assert told.exit_code == 2
    assert said in " ".join(told.output.replace("│", " ").split())


def test_the_committed_predictions_are_what_comes_out(tmp_path: Path) -> None:
    committed = json.loads(PREDICTED.read_text())
    words = committed["environment"]["command"].split()[3:]
    out = tmp_path / "again.json"
    words[words.index("--out") + 1] = str(out)
    told = predict(*(word.replace("bench/results", str(RESULTS)) for word in words))
    assert told.exit_code == 0, told.output
    assert json.loads(out.read_text())["setups"] == committed["setups"]


@pytest.mark.parametrize(
    ("setup", "low", "high"),
    [
        ("both:4", 0.99, 1.0),
        ("split:2+2", 1.0, 1.01),
        ("split:1+3", 0.95, 1.0),
        ("both:2", 0.99, 1.0),
    ],
)
def test_the_committed_results_are_within_what_the_page_says(
    setup: str, low: float, high: float
) -> None:
    found = json.loads(PREDICTED.read_text())["setups"][setup]["measured_over_predicted"]
    assert {round(ratio, 2) for ratio in found.values()} >= {low, high}
    assert all(low <= round(ratio, 2) <= high for ratio in found.values())
