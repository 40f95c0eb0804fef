"""Measured tables on disk: who finds which, and what becomes of files that hold something else."""

import json
import logging
from pathlib import Path

import pytest

from decode.spread_table import StepTable, StepTime
from decode.spread_trials import TimedStep
from worker.spread.kept_tables import KeptTables

TIMED = (TimedStep(1, 8, 0, 8, 6.0), TimedStep(2, 8, 0, 16, 5.0))


def table(spread_ms: float) -> StepTable:
    return StepTable([StepTime(1, 8, 0, 6.0), StepTime(2, 8, 0, spread_ms)], "measured")


def test_the_first_table_that_is_kept_is_everyones(tmp_path: Path) -> None:
    first, second = (KeptTables(tmp_path / "cache", "a GPU") for _ in range(2))
    assert first.find(2) is None
    kept = first.keep(2, table(5.0), TIMED)
    other = second.keep(2, table(4.0), TIMED)
    assert kept.digest == other.digest != 0
    for each in (kept, other, second.find(2)):
        assert each is not None
        assert each.table.even_ms(2, 8, 0) == 5.0
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [first.path(2).name]


def test_a_table_is_of_one_size_of_groups_and_one_kind_of_worker(tmp_path: Path) -> None:
    kept = KeptTables(tmp_path, "a GPU")
    kept.keep(2, table(5.0), TIMED)
    assert kept.find(3) is None
    assert KeptTables(tmp_path, "another GPU").find(2) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"of": "a GPU, 2 members"}', "\ufffd"])
def test_a_broken_file_is_told_of_once_and_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    kept = KeptTables(tmp_path, "a GPU")
    kept.path(2).write_text(text)
    with caplog.at_level(logging.WARNING):
        assert kept.find(2) is kept.find(2) is None
    assert [record.args[0] for record in caplog.records if record.args] == [str(kept.path(2))]
    kept.keep(2, table(5.0), TIMED)
    assert kept.find(2) is not None


def test_times_of_something_else_are_not_used(tmp_path: Path) -> None:
    kept, other = KeptTables(tmp_path, "a GPU"), KeptTables(tmp_path, "another GPU")
    other.keep(2, table(5.0), TIMED)
    other.path(2).rename(kept.path(2))
    assert kept.find(2) is None
    found = json.loads(kept.path(2).read_text())
    for ms in (float("nan"), float("inf"), 0.0, "no time", None):
        found |= {"of": "a GPU, 2 members", "steps": [[1, 8, 0, 6.0], [2, 8, 0, ms]]}
        kept.path(2).write_text(json.dumps(found))
        assert kept.find(2) is None


def test_where_nothing_can_be_written_the_table_is_this_members_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    kept = KeptTables(tmp_path / "file", "a GPU")
    with caplog.at_level(logging.WARNING):
        first, second = (kept.keep(2, table(ms), TIMED) for ms in (5.0, 4.0))
    assert first.digest != second.digest
    assert first.table.even_ms(2, 8, 0) == 5.0
    assert "the next start will time decode steps again" in caplog.text
