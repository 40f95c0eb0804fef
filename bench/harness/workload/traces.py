"""Public traces of real traffic, read as plans.

- Mooncake (FAST '25), JSONL: ``timestamp`` in ms, ``input_length``, ``output_length``,
  ``hash_ids`` of 512-token blocks.
- Qwen-Bailian, JSONL: ``chat_id``, ``timestamp`` in s, ``input_length``, ``output_length``,
  ``hash_ids`` of 16-token blocks.
- Azure LLM inference 2023 and 2024, CSV: ``TIMESTAMP``, ``ContextTokens``, ``GeneratedTokens``.
"""

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.harness.workload.plan import Planned

_MOONCAKE_BLOCK, _BAILIAN_BLOCK = 512, 16
_AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


@dataclass(frozen=True)
class Trace:
    """A trace: the ``name`` of its file, and its ``plan`` in order of time from 0 on."""

    name: str
    plan: Sequence[Planned]

    @classmethod
    def read(cls, setting: str, text: str) -> "Trace":
        """Read a trace. Raises ValueError naming the setting, file and line."""
        path = Path(text)
        return cls(path.name, read_trace(path))


def read_trace(path: Path) -> list[Planned]:
    """Read a trace of any of the formats, which is recognised by the content. An answer of no
    tokens becomes one of a single token. Raises ValueError naming file and line."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"trace: {path.name}: {error}") from None
    lines = _azure(text) if text.startswith(_AZURE[0]) else _jsonl(text)
    found = []
    last = 0
    try:
        for number, planned in lines:
            if planned.input_len < 1 or planned.output_len < 0:
                raise ValueError(f"{planned.input_len} tokens in, {planned.output_len} out")
            found.append(planned)
            last = number
    except (KeyError, TypeError, ValueError) as error:
        what = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"trace: {path.name}, after line {last}: {what}") from None
    if not found:
        raise ValueError(f"trace: {path.name} has no request")
    found.sort(key=lambda planned: planned.at_s)
    zero_s = found[0].at_s
    return [
        Planned(p.at_s - zero_s, p.input_len, max(1, p.output_len), p.blocks, p.block_len)
        for p in found
    ]


def _jsonl(text: str) -> Iterator[tuple[int, Planned]]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        entry: dict[str, Any] = json.loads(line)
        bailian = "chat_id" in entry
        at_s = float(entry["timestamp"]) / (1 if bailian else 1000)
        block_len = _BAILIAN_BLOCK if bailian else _MOONCAKE_BLOCK
        blocks = tuple(int(block) for block in entry["hash_ids"])
        lengths = int(entry["input_length"]), int(entry["output_length"])
        if lengths[0] > len(blocks) * block_len:
            raise ValueError(f"{lengths[0]} tokens in {len(blocks)} blocks of {block_len}")
        yield number, Planned(at_s, *lengths, blocks, block_len)


def _azure(text: str) -> Iterator[tuple[int, Planned]]:
    rows = csv.DictReader(io.StringIO(text))
    if missing := [name for name in _AZURE if name not in (rows.fieldnames or ())]:
        raise ValueError(f"no column {', '.join(missing)}")
    for row in rows:
        at = _time(row["TIMESTAMP"])
        yield rows.line_num, Planned(at, int(row["ContextTokens"]), int(row["GeneratedTokens"]))


def _time(text: str) -> float:
    """The time in seconds. Traces have seven digits after the point, datetime reads six."""
    whole, _, fraction = text.strip().removesuffix("+00:00").partition(".")
    return datetime.fromisoformat(whole).replace(tzinfo=UTC).timestamp() + float(
        f"0.{fraction or 0}"
    )
