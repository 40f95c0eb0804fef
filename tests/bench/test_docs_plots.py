"""Plots of the docs: every measured point is drawn, the notes say where it is from, and the
committed pictures are those of the committed results."""

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from bench.docs_plots import interference, main, pools, throughput
from bench.harness.html.charts import COLOURS, Chart, Line
from bench.plot_frame import framed
from bench.plots_of_services import KINDS, agent_turns, faults, predicted_pools, scale
from bench.plots_of_steps import (
    decode_step,
    drafts,
    first_tokens,
    quality_and_speed,
    quantised_steps,
    spread_step,
)

SVG = "{http://www.w3.org/2000/svg}"
ROOT = Path(__file__).resolve().parents[2]
DRAWINGS = (
    "system.svg",
    "processes.svg",
    "prefixes.svg",
    "drafts.svg",
    "eviction.svg",
    "handoff.svg",
    "memory.svg",
    "nodes.svg",
    "recovery.svg",
    "spread-layer.svg",
    "layers.svg",
    "triage.svg",
    "apis.svg",
    "families.svg",
    "proxy.svg",
    "start.svg",
    "words.svg",
)
ENVIRONMENT = {"at": "2026-01-02T03:04:05+00:00", "commit": "abc1234"}


def texts(drawn: str) -> list[str]:
    return ["".join(text.itertext()) for text in ET.fromstring(drawn).iter(f"{SVG}text")]


def write(file: Path, document: object) -> Path:
    file.write_text(json.dumps(document))
    return file


def test_throughput_names_its_lines_and_their_sources(tmp_path: Path) -> None:
    levels = [{"concurrency": n, "total_tok_s": 100.0 * n} for n in (1, 3)]
    own = write(
        tmp_path / "own.json",
        {
            "environment": ENVIRONMENT, "settings": {"input_len": 10, "output_len": 20},
            "results": {"levels": levels},
        },
    )  # fmt: skip
    other = {
        "name": "Other 1.0", "hardware": "1 x GPU", "source": "measured: offline",
        "recorded": "2025-12-31", "total_tok_s": {"1": 90, "3": 250},
    }  # fmt: skip
    references = write(tmp_path / "references.json", {"references": [other]})
    found = texts(throughput({"Own": own}, ["Other 1.0"], references))
    assert {"Own", "Other 1.0", "1", "3"} <= {*found}
    notes = " ".join(found)
    for part in ("2026-01-02", "abc1234", "own.json", "1 x GPU", "2025-12-31", "10 tokens in"):
        assert part in notes


def test_decode_steps_beside_what_they_are_compared_with(tmp_path: Path) -> None:
    batches = [
        {"batch": n, "step_ms": 2.0 * n, "times_vllm": 0.5, "times_floor": 2.0} for n in (1, 3)
    ]
    document = {
        "environment": ENVIRONMENT, "input_len": 10, "output_len": 20, "batches": batches,
    }  # fmt: skip
    found = texts(decode_step(write(tmp_path / "steps.json", document)))
    assert {"Baton", "vLLM 0.25.1, offline", "floor: reading the bytes", "1", "3"} <= {*found}
    assert "12" in found, "the y axis has to reach vLLM's 12 ms"


def test_spread_steps_without_drafts_over_the_sequences_of_both(tmp_path: Path) -> None:
    steps = [[1, 4, 0, 3.0], [1, 4, 1, 9.0], [2, 4, 0, 2.0], [1, 8, 0, 6.0], [2, 8, 0, 3.0]]
    file = write(tmp_path / "table.json", {"environment": ENVIRONMENT, "steps": steps})
    found = texts(spread_step(file))
    assert {"two local steps, at the same time", "one spread step", "8", "16"} <= {*found}
    assert "9" not in found, "drafts belong to no line"


def test_formats_of_weights_each_have_a_line(tmp_path: Path) -> None:
    files = {}
    for name, factor in (("A", 2.0), ("B", 1.0)):
        batches = [{"batch": n, "step_ms": factor * n} for n in (1, 3)]
        document = {
            "environment": ENVIRONMENT, "input_len": 10, "output_len": 20, "batches": batches,
        }  # fmt: skip
        files[name] = write(tmp_path / f"{name}.json", document)
    found = texts(quantised_steps(files))
    assert {"A", "B", "1", "3"} <= {*found}
    assert "A.json, B.json" in " ".join(found)


def test_quality_beside_speed(tmp_path: Path) -> None:
    step = {"environment": ENVIRONMENT, "batches": [{"batch": 8, "step_ms": 4.0}]}
    results = {name: {"kl_nats_problems": kl} for name, kl in (("none", 0.0), ("nvfp4", 3e-4))}
    quality = write(tmp_path / "quality.json", {"results": results})
    steps = {name: write(tmp_path / f"{name}.json", step) for name in results}
    found = texts(quality_and_speed(quality, {"GPU": steps}, 8))
    assert {"as stored, BF16", "nvfp4"} <= {*found}
    assert "quality.json" in " ".join(found)


def test_drafts_of_the_acceptance_asked_for(tmp_path: Path) -> None:
    steps = [
        {"batch": n, "drafts": drafted, "acceptance": share, "times_off": times}
        for n in (1, 4)
        for drafted, share, times in (
            ("0", 0.0, 9.0),
            ("1", 0.8, 1.5),
            ("2", 0.8, 2.0),
            ("auto", 0.8, 9.0),
        )
    ]
    document = {"environment": ENVIRONMENT, "input_len": 10, "steps": steps}
    found = texts(drafts(write(tmp_path / "drafts.json", document), 0.8))
    assert {"K = 1", "K = 2", "1", "4"} <= {*found}
    assert "K = 0" not in found
    assert "9" not in found, "automatic and no drafts belong to no line"


def test_first_tokens_over_powers_of_two(tmp_path: Path) -> None:
    document = {
        "environment": ENVIRONMENT,
        "single_prompts_ms": {"64": 10.0, "128": 20.0, "150": 22.0},
    }
    found = texts(first_tokens({"graphs": write(tmp_path / "one.json", document)}))
    assert {"64", "128"} <= {*found}
    assert "150" not in found


def test_predicted_pools_are_drawn_beside_the_best_fixed_ones(tmp_path: Path) -> None:
    rates = {"colocated:2": 3.0, "split:1+1": 4.5, "auto:2": 5.25}
    results = {setup: {"goodput": {"requests_per_s": rate}} for setup, rate in rates.items()}
    file = write(tmp_path / "plan.json", {"environment": ENVIRONMENT, "results": results})
    found = texts(predicted_pools({"a load, 2 GPUs": file}))
    assert {"a load, 2 GPUs", "4.5", "5.2"} <= {*found}
    assert "3.0" not in found, "a fixed set-up that is not the best"
    assert "not measured" in " ".join(found)


def test_gaps_between_tokens_have_labelled_bars(tmp_path: Path) -> None:
    quiet = {"itl_p50_ms": 5.0, "itl_p99_ms": 6.0, "itl_max_ms": 10.0}
    disturbed = {"itl_p50_ms": 5.5, "itl_p99_ms": 40.0, "itl_max_ms": 80.0}
    document = {
        "environment": ENVIRONMENT,
        "settings": {"num_streams": 3, "arrival_prompt": 8000, "every_s": 0.5},
        "results": {"colocated:4": {"quiet": quiet, "disturbed": disturbed}},
    }
    found = texts(interference([write(tmp_path / "gaps.json", document)]))
    labels = [f"{value:.1f}" for value in (*quiet.values(), *disturbed.values())]
    for text in ("colocated:4  p99", "beside arriving prompts", *labels):
        assert text in found
    assert "gaps.json" in " ".join(found)


def test_colours_follow_the_readers_setting() -> None:
    drawn = framed(Chart([Line("a", [(1, 1), (2, 3)])], "x", "y").svg(), "<title>", ["note " * 40])
    ET.fromstring(drawn)
    style = drawn[drawn.index("<style>\n:root") : drawn.index("</style>\n<rect")]
    assert "prefers-color-scheme: dark" in style
    assert COLOURS[0] in style
    assert COLOURS[0] not in drawn.replace(style, ""), "a line with a fixed colour"
    for name in set(re.findall(r"var\(--(\w+)\)", drawn)):
        assert style.count(f"--{name}:") == 2, f"{name} has a light and a dark value"


@pytest.fixture(scope="module")
def plots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All plots of the docs, drawn once."""
    folder = tmp_path_factory.mktemp("plots")
    app = typer.Typer()
    app.command()(main)
    result = CliRunner().invoke(app, ["--out", str(folder)])
    assert result.exit_code == 0, result.output
    return folder


@pytest.mark.parametrize(
    "name",
    [
        "throughput.svg",
        "step.svg",
        "quantised-step.svg",
        "quality-speed.svg",
        "drafts-speed.svg",
        "first-token.svg",
        "predicted-pools.svg",
        "spread-step.svg",
        "interference.svg",
        "agent-turns.svg",
        "faults.svg",
        "scale.svg",
    ],
)
def test_the_committed_plot_shows_the_committed_results(name: str, plots: Path) -> None:
    assert (plots / name).read_text() == (ROOT / "docs" / name).read_text()


@pytest.mark.parametrize("name", DRAWINGS)
def test_drawings_have_a_dark_value_for_each_colour(name: str) -> None:
    drawn = (ROOT / "docs" / name).read_text()
    ET.fromstring(drawn)
    light, dark = drawn[drawn.index("<style>") : drawn.index("text {")].split("@media")
    names = set(re.findall(r"var\(--([\w-]+)\)", drawn))
    assert names
    for colour in names:
        assert f"--{colour}:" in light
        assert f"--{colour}:" in dark
    assert not re.findall(r'(?:fill|stroke)="#', drawn), "a colour outside the style block"


def test_what_two_workers_decode_is_drawn_above_their_ttft(tmp_path: Path) -> None:
    def run(*running: list[int]) -> dict[str, object]:
        looks = [{"second": 1.0 + i, "running": both} for i, both in enumerate(running)]
        timeline = [{"second": i, "ttft_p50_ms": 100.0 if i else None} for i in range(3)]
        return {"shift:6": {"pools": looks, "timeline": timeline}}

    results = {"auto:1+1": run([0, 0], [1, 4], [2, 8]), "colocated:2": run([3, 3])}
    environment = {**ENVIRONMENT, "gpus": ["H100, 580.1, 81559 MiB"]}
    file = write(tmp_path / "shift.json", {"environment": environment, "results": results})
    found = texts(pools(file, "auto:1+1", "colocated:2", "shift:6"))
    assert {"at the decode worker", "kept at the prefill worker", "auto:1+1"} <= set(found)
    assert any("H100 × 2" in text and "abc1234" in text for text in found)


def test_turns_of_an_agent_have_a_line_for_each_prefix_with_and_without_the_cache(
    tmp_path: Path,
) -> None:
    turns = [{"turn": n, "ttft_ms": {"p50": 10.0 * n}} for n in (1, 2, 3)]
    results = {f"1 agents, {n} tokens shared": {"results": {"by_turn": turns}} for n in (8, 64)}
    environment = {**ENVIRONMENT, "gpus": ["H200, 580.1, 143771 MiB"]}
    document = {"environment": environment, "results": results}
    files = {name: write(tmp_path / f"{name}.json", document) for name in ("with", "without")}
    found = texts(agent_turns(files, (8, 64)))
    assert {f"{n} tokens shared, {name}" for n in (8, 64) for name in files} <= {*found}
    assert {"1", "2", "3"} <= {*found}
    assert any("H200" in text and "abc1234" in text for text in found)


def test_faults_have_the_longest_time_of_their_kind(tmp_path: Path) -> None:
    rounds: list[dict[str, Any]] = [
        {"fault": "decode worker killed", "silence_max_s": 0.25, "whole_s": 3.0},
        {"fault": "prefill worker killed", "silence_max_s": None, "whole_s": 4.5},
        {"fault": "redis full", "silence_max_s": 0.125, "whole_s": 2.0},
    ]
    document = {
        "environment": ENVIRONMENT,
        "results": {"faults": 3, "requests": 1200, "rounds": rounds},
    }
    found = texts(faults(write(tmp_path / "soak.json", document)))
    assert {"a worker killed", "Redis, all faults", "0.25", "4.50", "2.00"} <= {*found}
    assert "3.00" not in found
    assert not set(KINDS) - {"a worker killed", "Redis, all faults"} & {*found}
    rounds[0]["fault"] = "a fault without a kind"
    with pytest.raises(ValueError, match="fault: 'a fault without a kind'"):
        faults(write(tmp_path / "soak.json", document))


def test_memory_of_the_coordinator_over_the_requests_that_are_open(tmp_path: Path) -> None:
    levels = [
        {"level": n, "coordinator": {"memory_mib": {"before": 1.0, "most": 10.0 * n}}}
        for n in (1, 30)
    ]
    document = {
        "environment": ENVIRONMENT,
        "settings": {"input_len": [16, 64], "output_len": 8},
        "results": {"by_level": levels},
    }
    found = texts(scale(write(tmp_path / "scale.json", document)))
    assert {"1", "30", "300", "requests open at once"} <= {*found}
    assert any("16 to 64 tokens in, 8 out" in text and "abc1234" in text for text in found)
