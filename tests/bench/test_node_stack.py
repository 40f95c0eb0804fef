"""A node measured on a real stack: handoffs, levels, and streams beside long prompts."""

import json
from pathlib import Path

import pytest
import typer

from bench import node
from tests.e2e.stack import fork_stacks

PARTS = "handoff,handoff-long,levels,interference"


@pytest.mark.timeout(240)
def test_a_set_up_is_measured_by_one_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fork_stacks(monkeypatch)
    settings = {"size": "tiny", "modes": "plain", "parts": PARTS}
    with pytest.raises(typer.Exit) as ended:
        node.main("split:1+1", out_dir=tmp_path, prefix="cpu-", **settings)
    assert ended.value.exit_code == 0, capsys.readouterr().err
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
