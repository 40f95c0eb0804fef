"""A node measured on a real stack: handoffs, levels, and streams beside long prompts."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench import stack


@pytest.mark.timeout(240)
def test_a_set_up_is_measured_by_one_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench.node", "--setups", "split:1+1", "--size", "tiny"]
    command += ["--modes", "plain", "--parts", "handoff,handoff-long,levels,interference"]
    command += ["--out-dir", str(tmp_path), "--prefix", "cpu-"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=stack.ROOT, check=False)
    assert done.returncode == 0, done.stderr
    levels = json.loads((tmp_path / "cpu-split-1-1-levels.json").read_text())
    assert levels["ok"]
    assert [level["concurrency"] for level in levels["results"]["levels"]] == [1, 2, 4]
    assert levels["settings"]["extra_body"] == {"top_k": 0, "top_p": 1.0}
    for name in ("handoff", "handoff-long"):
        found = json.loads((tmp_path / f"cpu-split-1-1-{name}.json").read_text())["results"]
        assert found["handoffs"] == 10  # and two warm-ups
        assert found["stages"]["copy"]["p50_ms"] > 0
    found = json.loads((tmp_path / "cpu-split-1-1-interference.json").read_text())["results"]
    assert found["split:1+1"]["arrivals"]["within_steady"] > 0
