"""The throughput of stacks with and without spread steps."""

from pathlib import Path

import pytest
import typer

from bench import result_file, spread_service

MODEL = Path(__file__).resolve().parents[2] / "models" / "tiny"

pytestmark = pytest.mark.timeout(240)


def test_levels_and_counters_are_in_the_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "service.json"
    with pytest.raises(typer.Exit) as ended:
        spread_service.main(
            MODEL, ["--device", "cpu", "--speculate", "off"], stacks="colocated:2/off", levels="2",
            input_len=16, output_len=96, rounds=1, out=out,
        )  # fmt: skip
    assert ended.value.exit_code == 0, capsys.readouterr().out
    found = result_file.load(out, "spread-service")["results"]["colocated:2/off"]
    assert found["2"]["completed"] == 2
    assert found["2"]["counters"]["spread_steps"] == 0


def test_a_stack_that_does_not_start_is_a_problem_and_leaves_an_earlier_result(
    tmp_path: Path,
) -> None:
    out = tmp_path / "service.json"
    out.write_text("earlier")
    with pytest.raises(typer.Exit) as ended:
        spread_service.main(
            tmp_path, ["--device", "cpu"], stacks="colocated:1", levels="1",
            input_len=16, output_len=16, rounds=1, out=out,
        )  # fmt: skip
    assert ended.value.exit_code == 1
    assert out.read_text() == "earlier"
    assert result_file.load(tmp_path / "service.failed.json")["problems"]
