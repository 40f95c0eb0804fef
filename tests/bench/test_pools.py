"""One set-up of pools measured as a whole: started, measured, asked for its handoffs, stopped."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench import pools

ROOT = Path(pools.__file__).parents[1]


@pytest.mark.timeout(180)
def test_a_set_up_is_measured_and_its_handoffs_told(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench.pools", "--setup", "split:1+1", "--device", "cpu"]
    command += ["--out-dir", str(tmp_path), "--prefix", "cpu-", "--long-prompt", "128", "--"]
    command += ["--levels", "2", "--requests", "4", "--input-len", "64", "--output-len", "8"]
    command += ["--rounds", "2", "--extra-body", '{"top_k": 0}']
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "cpu-split-1-1.json").read_text())
    assert result["ok"]
    assert [level["concurrency"] for level in result["results"]["levels"]] == [2]
    handoff = json.loads((tmp_path / "cpu-split-1-1-handoff.json").read_text())
    assert handoff["setup"] == "split:1+1"
    assert handoff["handoffs"] == 6  # and two warm-ups of the run
    assert handoff["stages"]["copy"]["p50_ms"] > 0
    assert str(tmp_path) not in (tmp_path / "cpu-split-1-1-handoff.json").read_text()
    assert (tmp_path / "cpu-split-1-1.html").is_file()
    long = json.loads((tmp_path / "cpu-split-1-1-handoff-128.json").read_text())
    assert long["handoffs"] == 34  # and two warm-ups
    settings = json.loads((tmp_path / "cpu-split-1-1-128.json").read_text())["settings"]
    assert (settings["extra_body"], settings["output_len"]) == ({"top_k": 0}, 32)


def test_a_set_up_that_means_nothing_is_named() -> None:
    import typer

    app = typer.Typer()
    app.command()(pools.main)
    told = CliRunner().invoke(app, ["--setup", "three"])
    assert told.exit_code == 2
    assert "three" in told.output
