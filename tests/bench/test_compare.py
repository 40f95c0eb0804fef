"""Scores and results side by side, and the files they are read from."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bench import result_file
from bench.cli import app
from bench.harness.score import WEIGHTS, Side, differences, level_ratios, ratios
from tests.bench.documents import throughput_document

# Four requests of 5 + 3 tokens in 3 s: 32 tokens in 3 s at every level.
TOK_S = 32 / 3


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.stdout, result.stderr


def written(path: Path, found: dict[str, Any]) -> str:
    result_file.write(path, found)
    return str(path)


def test_a_score_and_its_parts() -> None:
    side = Side("a", [throughput_document()])
    assert side.score() == pytest.approx(22 * TOK_S, rel=1e-4)
    assert side.tok_s == pytest.approx(dict.fromkeys(WEIGHTS, TOK_S), rel=1e-4)


def test_wrong_answers_score_nothing_and_a_missing_level_has_no_score() -> None:
    assert Side("a", [throughput_document()], correct=False).score() == 0
    assert Side("a", [throughput_document(levels=(1, 2))]).score() is None
    stopped = throughput_document()
    stopped["results"]["levels"][3]["not_sent"] = 1
    assert Side("a", [stopped]).score() is None


def test_ratios_are_to_the_first() -> None:
    sides = [Side("a", [throughput_document()]), Side("b", [throughput_document(2.0)])]
    assert ratios([side.score() for side in sides]) == pytest.approx([1, 2], rel=1e-3)
    medians = [each and each.median for each in level_ratios(sides)[64]]
    assert medians == pytest.approx([1, 2], rel=1e-3)
    assert ratios([4.0, None, 2.0]) == [1.0, None, 0.5]


def test_what_is_not_the_same_is_said() -> None:
    other = throughput_document()
    other["settings"]["output_len"] = 9
    other["settings"] |= {"rounds": 6, "extra_body": {"top_k": 0}, "seed": 4, "levels": [1]}
    assert differences([Side("a", [throughput_document()]), Side("b", [other])]) == [
        "output_len: 3, 9", "rounds: None, 6", "extra_body: None, {'top_k': 0}"
    ]  # fmt: skip


def test_a_result_that_is_not_good_says_so(tmp_path: Path) -> None:
    bad = throughput_document(failed=[{"label": "#1", "failure": "garbage"}])
    bad["stopped"] = "interrupted"
    _, _, err = run("score", written(tmp_path / "bad.json", bad))
    assert "bad: stopped: interrupted" in err
    assert "bad: level 1: 1 of 4 failed (1 garbage)" in err


def test_the_commands(tmp_path: Path) -> None:
    ours = written(tmp_path / "ours.json", throughput_document(2.0))
    theirs = written(tmp_path / "theirs.json", throughput_document())
    status, out, err = run("score", ours, theirs)
    assert status == 0
    assert json.loads(out)["ratios"] == pytest.approx([1, 0.5], rel=1e-3)
    assert "score" in err
    status, out, _ = run("compare", theirs, ours)
    assert status == 0
    assert json.loads(out)["ratios"]["64"] == pytest.approx([1, 2], rel=1e-3)
    drawn = tmp_path / "figures"
    status, out, _ = run(
        "report", ours, theirs, "--out", str(tmp_path / "r.html"), "--figures", str(drawn),
        "--gpus", "2", "--gpus", "4",
    )  # fmt: skip
    assert status == 0
    assert (tmp_path / "r.html").stat().st_size > 10_000
    kinds = [
        {file.stem for file in drawn.glob(f"*.{kind}") if file.stat().st_size}
        for kind in ("svg", "png", "csv")
    ]
    assert kinds[0] == kinds[1] == kinds[2] >= {
        "latency-ttft", "throughput-generated-tokens-a-second",
        "throughput-throughput-per-gpu-over-tokens-a-second-of-a-user",
        "second-by-second-ours-tokens-a-second", "second-by-second-theirs-tokens-a-second",
    }  # fmt: skip
    status, out, err = run("report", ours, theirs, "--gpus", "2")
    assert status == 2
    assert "--gpus: 1 numbers for 2 runs" in " ".join(err.replace("│", " ").split())


def test_a_folder_holds_the_repetitions_of_a_run(tmp_path: Path) -> None:
    for name, speeds in {"theirs": (1.0, 1.25, 1.1), "ours": (2.0, 2.5)}.items():
        for number, speed in enumerate(speeds):
            (tmp_path / name).mkdir(exist_ok=True)
            written(tmp_path / name / f"{number}.json", throughput_document(speed))
    status, out, err = run("compare", str(tmp_path / "theirs"), str(tmp_path / "ours"))
    assert status == 0
    found = json.loads(out)
    assert found["names"] == ["theirs", "ours"]
    assert found["ratios"]["8"] == pytest.approx([1, 2.25 / 1.1], rel=1e-3)
    assert found["spread"]["8"][1] == pytest.approx([2 / 1.25, 2.5 / 1], rel=1e-3)
    assert "2.046 (1.600–2.500)" in err
    (tmp_path / "none").mkdir()
    status, _, err = run("compare", str(tmp_path / "none"), str(tmp_path / "ours"))
    assert status == 2
    assert "none: a folder without results" in err


def test_a_correctness_result_that_failed_makes_the_score_zero(tmp_path: Path) -> None:
    ours = written(tmp_path / "ours.json", throughput_document())
    for ok, status in ((True, 0), (False, 1)):
        judged = throughput_document() | {"kind": "correctness", "ok": ok}
        gate = written(tmp_path / "gate.json", judged)
        code, out, _ = run("score", ours, "--correctness", gate)
        assert code == status
        assert (json.loads(out)["scores"]["ours"] == 0) is not ok


@pytest.mark.parametrize(
    ("content", "said"),
    [("{", "JSON|Expecting"), ("[]", "not a result"), (None, "No such file")],
)
def test_a_bad_file_is_named(tmp_path: Path, content: str | None, said: str) -> None:
    path = tmp_path / "bad.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(result_file.ResultFileBad, match=said):
        result_file.load(path)
    status, _, err = run("score", str(path))
    assert status == 2
    assert "bad.json" in err


def test_a_result_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "load.json"
    written(path, throughput_document() | {"kind": "load"})
    with pytest.raises(result_file.ResultFileBad, match="a result of load, not of throughput"):
        result_file.load(path, "throughput")


def test_a_file_is_rounded_and_has_no_nan(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    result_file.write(path, {"kind": "x", "results": {"a": 1.23456789, "b": float("nan"), "c": []}})
    assert json.loads(path.read_text())["results"] == {"a": 1.2346, "b": None, "c": []}
