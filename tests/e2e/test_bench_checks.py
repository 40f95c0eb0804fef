"""The harness's checks against a whole stack with the bundled model, as they are run by hand."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import runs
from bench.environment import ROOT
from tests.e2e.conftest import ending_well
from tests.e2e.forks import completed
from tests.e2e.served import TINY
from tests.e2e.stack import Stack, environment

LIMIT_S = 110.0


def bench(*arguments: str, **settings: object) -> tuple[int, dict[str, Any], str]:
    """Exit status, the last line of stdout, and all that was printed."""
    command = [sys.executable, "-m", "deploy.cli", "bench", *arguments]
    done = completed(command, environment(**settings), LIMIT_S)
    printed = done.stdout + done.stderr
    print(printed)
    return done.returncode, json.loads(done.stdout.splitlines()[-1]), printed


def test_conformance_of_our_own_server(tiny: Stack, tmp_path: Path) -> None:
    out = tmp_path / "conformance.json"
    status, line, printed = bench("conformance", "--url", tiny.url, "--out", str(out))
    assert (status, line["fail"], line["required_missed"]) == (0, 0, 0)
    missing = [one["name"] for one in json.loads(out.read_text())["results"]["checks"]
               if one["verdict"] == "not offered"]  # fmt: skip
    assert missing == ["a browser's preflight request is allowed"]  # BATON_ALLOWED_ORIGINS is unset
    assert "64 at once, none lost, none mixed up" in printed


def test_the_gate_is_the_exit_status(tiny: Stack, tmp_path: Path) -> None:
    problems = (ROOT / "models" / "heldout.jsonl").read_text().splitlines()[:12]
    wrong = json.loads(problems[0]) | {"answer": "#### -1"}
    data = tmp_path / "problems.jsonl"
    data.write_text("\n".join([*problems[1:], json.dumps(wrong)]))
    asked = ["correctness", "--url", tiny.url, "--suite", "bundled", "--data", str(data)]
    asked += ["--out", str(tmp_path / "correctness.json")]
    status, line, _ = bench(*asked)
    assert (status, line["problems"], line["strict"]) == (0, 12, 0.91667)
    status, line, printed = bench(*asked, "--gate", "0.92")
    assert (status, line["ok"]) == (1, False)
    assert "strict match: 91.7% of 12 is below 92.0%" in printed


def test_400_at_once_and_three_witnesses(tiny: Stack, tmp_path: Path) -> None:
    out = tmp_path / "scale.json"
    status, line, _ = bench(
        "scale", "--url", tiny.url, "--levels", "10,400", "--input-len", "16-32",
        "--output-len", "12", "--out", str(out), redis_url=tiny.redis_url,
    )  # fmt: skip
    assert status == 0
    assert (line["finished"], line["refused"], line["lost"]) == (451, 0, 0)
    assert 350 < line["most_open"] <= 400, "on a busy machine the first may end before the last"
    _, most = json.loads(out.read_text())["results"]["by_level"]
    assert most["redis"] == {"finished": 440}
    assert most["coordinator"]["ended"]["finished"] == 440
    assert most["coordinator"]["memory_mib"]["most"] > 0


def test_a_full_server_refuses_with_retry_after_and_loses_nothing(tmp_path: Path) -> None:
    with ending_well(Stack(TINY, "--role", "colocated", max_open=20)) as stack:
        status, line, _ = bench(
            "scale", "--url", stack.url, "--levels", "60", "--input-len", "16", "--output-len",
            "16", "--out", str(tmp_path / "scale.json"), redis_url=stack.redis_url,
        )  # fmt: skip
        assert status == 0
        assert line["refused"] > 0
        assert line["finished"] >= 20
        assert line["finished"] + line["refused"] == 66


def test_the_gpu_benchmark_runs_without_a_gpu_and_says_so(tiny: Stack, tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"
    status, line, printed = bench(
        "gpu", "--url", tiny.url, "--hold-s", "3", "--output-len", "8", "--input-words", "8",
        "--start", "2", "--most", "4", "--out", str(out),
    )  # fmt: skip
    assert (status, line["verdict"], line["gpus"]) == (0, "no GPU", 0)
    assert line["tokens_per_s"] > 0
    assert "no GPU:" in printed
    found = json.loads(out.read_text())["results"]
    assert len(found["tokens_each_second"]) == 3
    assert found["tokens_per_joule"] is None


def test_time_outside_the_model_counts_each_requests_own_prefill(tiny: Stack) -> None:
    found = runs.outside_model(tiny, runs.prompts(TINY, 1)[0], num_requests=3)
    assert found["requests"] == 3
    assert found["p50_ms"] < found["total_p50_ms"] - found["decode_step_p50_ms"]


@pytest.mark.parametrize("command", ["conformance", "correctness", "scale", "gpu"])
def test_a_server_that_is_down_is_named_and_the_status_is_2(command: str, tmp_path: Path) -> None:
    out = str(tmp_path / "out.json")
    status, line, printed = bench(command, "--url", "http://127.0.0.1:9", "--out", out)
    assert (status, line["ok"]) == (2, False)
    assert "http://127.0.0.1:9" in printed
