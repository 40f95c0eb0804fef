"""Steps that GPUs compute together, a process each: bits as of local steps, and one that stalls.

On one GPU the processes compute in turns: the same memory, kernels and bits, at no speed.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from bench import result_file

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(400)]

ROOT = Path(__file__).resolve().parents[2]


def run(gpus: int, model: str, tmp_path: Path) -> dict[str, Any]:
    """The results of a model of the benchmark."""
    if torch.cuda.device_count() < gpus:
        pytest.skip(f"{gpus} GPUs are needed")
    out = tmp_path / "spread.json"
    command = [
        sys.executable, "-m", "bench.spread_step", "--gpus", str(max(2, gpus)), "--models", model,
        *(["--share-gpu"] if gpus == 1 else []),
        "--logs", str(tmp_path / "logs"), "--out", str(out),
    ]  # fmt: skip
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=380)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = result_file.load(out, "spread-step")
    assert found["ok"], found["problems"]
    results: dict[str, Any] = found["results"][model]
    return results


@pytest.mark.parametrize("gpus", [1, 2, 4])
def test_spread_steps_have_the_bits_of_local_ones(gpus: int, tmp_path: Path) -> None:
    results = run(gpus, "small", tmp_path)
    assert len(results["bits"]) > 8
    assert results["stall"]["taken_back"]
    for member, waited in enumerate(results["time"][0]["waited_us"]):
        others = [us for place, us in enumerate(waited["rows"]) if place != member]
        assert all(us > 0 for us in others), "each device waited for each other one's rows"
    if gpus > 1:
        assert results["lend"][0]["came"] > 0


@pytest.mark.parametrize("gpus", [1, 2])
def test_spread_steps_with_drafts_have_the_bits_of_local_ones(gpus: int, tmp_path: Path) -> None:
    results = run(gpus, "drafts", tmp_path)
    assert all(row["equal"] for row in results["bits"])
    assert sum(results["bits"][2]["num_accepted"]) > 0
    assert results["stall"]["taken_back"]
    assert results["time"][0]["exchange_ms"] > 0
