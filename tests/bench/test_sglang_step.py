"""Steps of SGLang's offline engine, with an engine in its place."""

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from bench import sglang_step

MODEL = Path(__file__).parents[2] / "bench/models/llama-3.1-8b"
NUM_IDS = {"llama-3.1-8b": 128256, "qwen3.5-9b": 248320}
PREFILL_S, STEP_S = 0.5, 0.01


class Clock:
    """Seconds that pass only while the engine generates."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def perf_counter(self) -> float:
        return self.now_s


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    clock, seen = Clock(), dict[str, Any]()

    class Engine:
        def __init__(self, **settings: Any) -> None:
            seen.update(settings)

        def generate(
            self, input_ids: list[list[int]], sampling_params: dict[str, Any]
        ) -> list[dict[str, Any]]:
            count = sampling_params["max_new_tokens"]
            assert max(map(max, input_ids)) < NUM_IDS[Path(seen["model_path"]).name]
            clock.now_s += PREFILL_S + STEP_S * (count - 1)
            return [{"meta_info": {"completion_tokens": count}} for _ in input_ids]

        def shutdown(self) -> None:
            seen["ended"] = True

    module = ModuleType("sglang")
    module.Engine = Engine  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sglang", module)
    monkeypatch.setattr(sglang_step, "time", clock)
    monkeypatch.setattr(sglang_step, "gpu_environment", lambda module, commit: {"commit": commit})
    return seen


def run(*words: str) -> Any:
    app = typer.Typer()
    app.command()(sglang_step.main)
    return CliRunner().invoke(app, ["--model", str(MODEL), *words])


def test_a_step_is_what_all_tokens_but_the_first_take(
    started: dict[str, Any], tmp_path: Path
) -> None:
    out = tmp_path / "result.json"
    more = json.dumps({"mem_fraction_static": 0.5})
    ended = run("--batches", "2,4", "--output-len", "101", "--engine", more, "--out", str(out))
    assert ended.exit_code == 0, ended.output
    found = json.loads(out.read_text())["batches"]
    assert [row["batch"] for row in found] == [2, 4]
    assert found[0]["step_ms"] == pytest.approx(1e3 * STEP_S)
    assert found[1]["prefill_tokens_per_s"] == pytest.approx(4 * 1024 / PREFILL_S)
    assert found[1]["total_tokens_per_s"] == pytest.approx(4 * 1125 / 1.5)
    assert started["mem_fraction_static"] == 0.5
    assert started["max_running_requests"] == 4
    assert started["ended"]


def test_one_token_has_no_step(started: dict[str, Any]) -> None:
    ended = run("--output-len", "1")
    assert ended.exit_code == 2
    assert "--output-len: 1 is below 2" in ended.output


def test_the_ids_of_a_model_whose_text_part_is_apart(
    started: dict[str, Any], tmp_path: Path
) -> None:
    model = MODEL.parent / "qwen3.5-9b"
    ended = run(
        "--model", str(model), "--batches", "2", "--output-len", "2", "--out", str(tmp_path / "r")
    )
    assert ended.exit_code == 0, ended.output
    assert started["model_path"] == str(model)
