"""Bad servers are named by every check, which ends in time with the right status."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bench.cli import app
from tests.bench.stub import Behaviour, Stub

ServeStub = Callable[[Behaviour], Stub]
FAULTS = {"mute": "timeout", "not_http": "garbage", "refuse": "http"}
IN_A_STREAM = {"stall": "timeout", "garbage": "not UTF-8", "drop": "dropped"}


def run(*arguments: str) -> tuple[int, dict[str, Any], str]:
    found = CliRunner().invoke(app, arguments)
    return found.exit_code, json.loads(found.stdout.splitlines()[-1]), found.output


@pytest.mark.parametrize("fault", FAULTS)
def test_correctness_measures_nothing_on_a_bad_server(
    serve_stub: ServeStub, tmp_path: Path, fault: Any
) -> None:
    url = serve_stub(Behaviour(ttft_s=0.0, itl_s=0.0, fault=fault)).url
    out = tmp_path / "out.json"
    status, line, printed = run(
        "correctness", "--url", url, "--suite", "bundled", "--request-s", "0.5", "--out", str(out)
    )
    assert (status, line["ok"]) == (2, False)
    assert re.search(rf"problem \d: {FAULTS[fault]}", printed)  # whichever of eight fails first
    assert json.loads(out.read_text())["stopped"].startswith("cannot measure: problem ")


@pytest.mark.parametrize("fault", FAULTS)
def test_the_gpu_benchmark_gives_up_on_a_bad_server(
    serve_stub: ServeStub, tmp_path: Path, fault: Any
) -> None:
    url = serve_stub(Behaviour(ttft_s=0.0, itl_s=0.0, fault=fault)).url
    out = str(tmp_path / "out.json")
    status, _, printed = run(
        "gpu",
        "--url",
        url,
        "--start",
        "8",
        "--most",
        "8",
        "--hold-s",
        "1",
        "--request-s",
        "0.2",
        "--out",
        out,
    )
    assert status == 2
    assert "the last failure: " + FAULTS[fault] in printed


@pytest.mark.parametrize("fault", IN_A_STREAM)
def test_conformance_fails_a_bad_server_check_by_check(serve_stub: ServeStub, fault: Any) -> None:
    url = serve_stub(Behaviour(ttft_s=0.0, itl_s=0.0, fault=fault)).url
    status, line, printed = run(
        "conformance", "--url", url, "--suites", "stream", "--request-s", "0.1"
    )
    assert status == 1
    assert line["required_missed"] >= 5
    assert IN_A_STREAM[fault] in printed


def test_scale_counts_what_a_stalling_server_loses(serve_stub: ServeStub, tmp_path: Path) -> None:
    behaviour = Behaviour(ttft_s=0.0, itl_s=0.0, fault="stall", fault_every=2)
    status, line, printed = run(
        "scale", "--url", serve_stub(behaviour).url, "--levels", "10", "--output-len", "4",
        "--request-s", "0.5", "--out", str(tmp_path / "out.json"),
    )  # fmt: skip
    assert (status, line["finished"], line["lost"]) == (1, 6, 5)
    assert "timeout: not complete within 0.5 s" in printed


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["correctness", "--gate", "2"], "gate"),
        (["correctness", "--url", "nonsense"], "url"),
        (["conformance", "--suites", "chat,nothing"], "nothing"),
        (["scale", "--levels", "ten"], "levels"),
        (["scale", "--input-len", "9-3"], "input_len"),
        (["gpu", "--url", "http://h:1", "--hold-s", "0"], "hold_s"),
    ],
)
def test_a_bad_setting_is_named(arguments: list[str], named: str) -> None:
    found = CliRunner().invoke(app, arguments)
    assert found.exit_code == 2
    assert named in found.output
