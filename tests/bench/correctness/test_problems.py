"""Reading problems, and finding the number in an answer."""

import json
from pathlib import Path

import pytest

from bench.harness.cannot_measure import CannotMeasure
from bench.harness.correctness.problems import BUNDLED, flexible, read_problems, strict


@pytest.mark.parametrize(
    ("text", "by_strict", "by_flexible"),
    [
        ("5 + 3 = 8\n#### 8", "8", "8"),
        ("#### -12.5", "-12.5", "-12.5"),
        ("#### 1,200.", "1200", "1200"),
        ("She has 3 apples and then 7.", "", "7"),
        ("The answer is $1,234.50!", "", "1234.50"),
        ("I do not know.", "", ""),
        ("#### 4\nThat took 2 steps", "4", "2"),
    ],
)
def test_the_number_of_an_answer(text: str, by_strict: str, by_flexible: str) -> None:
    assert (strict(text), flexible(text)) == (by_strict, by_flexible)


def test_the_bundled_problems_are_there() -> None:
    found = read_problems(BUNDLED)
    rows = [json.loads(line) for line in BUNDLED.read_text().splitlines()]
    assert len(found) == 200
    assert found == [(row["question"], str(row["final"])) for row in rows]


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ('{"question": "a", "answer": "#### 1"}\nnot json\n', "line 2"),
        ('{"question": "a"}\n', "line 1"),
        ('{"question": "a", "answer": "no number"}\n', "line 1"),
        ('{"question": 3, "answer": "#### 1"}\n', "line 1"),
        ("[1]\n", "line 1"),
        ("\n", "no problem"),
    ],
)
def test_a_bad_file_is_named_with_its_line(tmp_path: Path, content: str, named: str) -> None:
    path = tmp_path / "problems.jsonl"
    path.write_text(content)
    with pytest.raises(CannotMeasure, match=named):
        read_problems(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CannotMeasure, match=r"cannot read .*nowhere.jsonl"):
        read_problems(tmp_path / "nowhere.jsonl")
