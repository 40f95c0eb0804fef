"""A node measured on a real stack: levels and handoffs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench import stack


@pytest.mark.timeout(240)
def test_a_set_up_is_measured_by_one_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench.node", "--setups", "split:1+1", "--size", "tiny"]
    command += ["--modes", "plain", "--parts", "levels,handoff"]
    command += ["--out-dir", str(tmp_path), "--prefix", "cpu-"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=stack.ROOT, check=False)
    assert done.returncode == 0, done.stderr
    levels = json.loads((tmp_path / "cpu-split-1-1-levels.json").read_text())
    assert levels["ok"]
    assert [level["concurrency"] for level in levels["results"]["levels"]] == [1, 2, 4]
    assert levels["settings"]["extra_body"] == {"top_k": 0, "top_p": 1.0}
    handoff = json.loads((tmp_path / "cpu-split-1-1-handoff.json").read_text())
    for length in ("64", "512"):
        found = handoff["results"][length]
        assert found["handoffs"] == 10  # and two warm-ups
        assert found["stages"]["copy"]["p50_ms"] > 0
