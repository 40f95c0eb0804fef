"""Service with drafts at a given acceptance, measured by one command."""

import time
from pathlib import Path
from typing import Any

import pytest

from bench import result_file
from bench.commands import CommandFailed, run
from bench.drafts_service import Call, line
from tests.bench.documents import throughput_document

TINY = Path(__file__).parents[2] / "models" / "tiny"
LOADS = {"levels": ["throughput", "--levels", "1,4"]}


def call(left_s: float) -> Call:
    ends_at = time.monotonic() + left_s
    return Call(Path("/m"), ["--device", "cpu"], "auto", 0, LOADS, Path("/out"), "x-", ends_at)


def test_both_parts_are_measured_with_drafts(tmp_path: Path) -> None:
    words = [
        "bench.drafts_service", "--model", str(TINY), "--acceptances", "0.9", "--speculate", "3",
        "--levels", "1,2", "--rounds", "1", "--input-len", "32", "--output-len", "16",
        "--agents", "1,2", "--turns", "1", "--cached", "320", "--new", "20", "--answer", "16",
        "--state-slots", "32", "--out-dir", str(tmp_path), "--prefix", "cpu-", "--call-s", "110",
        "--", "--device", "cpu",
    ]  # fmt: skip
    ended = run(words, within_s=110)
    assert ended.exit_code == 0, ended.said
    for part, kind in (("levels", "throughput"), ("agents", "agents")):
        document = result_file.load(tmp_path / f"cpu-0.9-{part}.json", kind)
        assert document["server"]["given_draft_acceptance"] == 0.9
        levels = document["results"]["levels"]
        assert [level["concurrency"] for level in levels] == [1, 2]
        assert all(level["failed"] == 0 for level in levels)
    first = levels[0]["by_turn"][0]
    assert first["cached_tokens"] >= 256, "the context was computed before"
    assert "0.9 agents    2 at once: " in ended.said


def test_what_is_started_and_sent() -> None:
    found = call(100.0)
    assert found.arguments("off")[-4:] == ["--speculate", "off", "--device", "cpu"]
    assert found.arguments("0.8")[-6:] == [
        "--speculate", "auto", "--draft-acceptance", "0.8", "--device", "cpu",
    ]  # fmt: skip
    assert str(found.file("0.8", "agents")) == "/out/x-0.8-agents.json"


def test_a_part_is_not_begun_when_no_time_is_left() -> None:
    served: Any = None  # a stack that must not be asked
    with pytest.raises(CommandFailed, match=r"levels: only 2\d s are left"):
        call(29.4).measure(served, "0.8", "levels")


def test_a_level_in_words() -> None:
    (found,) = throughput_document(levels=(8,))["results"]["levels"]
    assert line(found).startswith(
        "   8 at once:      11 tok/s,      4 out, TTFT 1000 ms, TPOT 1000"
    )
    assert "no request was completed" in line({"concurrency": 2, "requests": 0, "failed": 0})
