"""Word problems in files of JSON lines: ``question`` and ``answer``, which ends in ``#### N``."""

import json
import re
from pathlib import Path

from bench.environment import ROOT
from bench.harness.cannot_measure import CannotMeasure

BUNDLED = ROOT / "models" / "heldout.jsonl"

_FINAL = re.compile(r"#### (-?[\d.,]+)")
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def read_problems(path: Path) -> list[tuple[str, str]]:
    """(question, final number) of every line; raises CannotMeasure naming the first bad one."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CannotMeasure(f"data: cannot read {path}: {error}") from None
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            question, final = row["question"], strict(row["answer"])
        except (ValueError, KeyError, TypeError) as error:
            raise CannotMeasure(f"data: {path}, line {number}: {error!r}") from None
        if not isinstance(question, str) or not final:
            raise CannotMeasure(f"data: {path}, line {number}: no question, or no '#### N'")
        found.append((question, final))
    if not found:
        raise CannotMeasure(f"data: {path} holds no problem")
    return found


def strict(text: str) -> str:
    """The number after ``####``, without thousands separators; "" when there is none.

    >>> strict("3 * 400 = 1,200\\n#### 1,200")
    '1200'
    """
    found = _FINAL.search(text)
    return _plain(found[1]) if found else ""


def flexible(text: str) -> str:
    """The last number in the text, whatever stands around it.

    >>> flexible("She has $1,200 in 3 purses, so 400 each.")
    '400'
    """
    found = _NUMBER.findall(text)
    return _plain(found[-1]) if found else ""


def _plain(number: str) -> str:
    return number.replace(",", "").rstrip(".")
