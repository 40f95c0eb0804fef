"""The screen of ``baton top``, as text."""

import io
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from coordinator.core.contract import LoadPoint
from coordinator.http.timeline import timeline
from coordinator.record.record import RequestRecord
from deploy.load_view import load_line, sparkline
from deploy.readings import Rates, Reading
from deploy.top_view import table
from tests.coordinator.http.test_timeline import HANDED_OFF
from tests.deploy.stub_api import LOAD, STATUS

IDLE = LoadPoint(0.0, 0.0, None, None, None, None, 0, 0, 0.0, None, 0.0)
BUSY = LoadPoint(1234.0, 9.0, 0.2, 1.0, 0.0105, 0.02, 7, 3, 1.0, 0.004, 1e6)


def load(*points: LoadPoint) -> dict[str, Any]:
    return LOAD | {"points": [msgspec.to_builtins(point) for point in points]}


def workers(**more: Any) -> list[dict[str, Any]]:
    first = STATUS["workers"][0]
    return [
        first | {"instance": "prefill-c25edffe"},
        *(first | {"instance": f"decode-3787025{n}", "role": "decode"} | more for n in range(7)),
    ]


def screen(reading: Reading, width: int, height: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height)
    console.print(table(reading, Rates(1.0, 2.0, 0.1, 0.004, 0.012), width, height))
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


REQUEST = msgspec.to_builtins(
    timeline(
        RequestRecord(request_id="0" * 32, coordinator="c", state="decoding", **HANDED_OFF),
        102.0, num_output=41,
    )
)  # fmt: skip
READING = Reading(
    0.0, STATUS | {"workers": workers(drafts=4, tokens_per_step=3.2, breaker="open")},
    load=load(BUSY, IDLE), requests=[REQUEST] * 20,
)  # fmt: skip


def test_80_by_24_keeps_role_running_and_waiting() -> None:
    lines = screen(READING, 80, 24)
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    heads = lines[4].split()
    assert heads[:4] == ["role", "instance", "run", "wait"]
    assert lines[5].split()[:4] == ["prefill", "prefill-c25edffe", "1", "0"]
    assert lines[6].split()[:4] == ["decode", "decode-37870250", "1", "0"]
    assert "…" not in lines[5] + lines[6]
    (request,) = {line for line in lines if "decoding" in line}
    assert " 41 " in request, "a running request tells its tokens so far"


def test_a_wide_screen_has_all_that_is_told_and_nothing_empty() -> None:
    heads = screen(READING, 200, 40)[4].split("  ")
    found = [head.strip() for head in heads if head.strip()]
    assert found == [
        "role", "instance", "device", "run", "wait", "pages", "kv", "slots", "in tok/s",
        "out tok/s", "drafts", "tok/step", "breaker",
    ]  # fmt: skip
    quiet = screen(replace(READING, status=STATUS), 200, 40)[4]
    assert "breaker" not in quiet
    assert "drafts" not in quiet


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 120, 200])
def test_no_width_breaks_a_line_of_the_workers(width: int) -> None:
    lines = screen(READING, width, 60)
    assert sum("prefill-" in line or "decode-" in line for line in lines) <= 8
    assert max(map(len, lines)) <= width


def test_the_last_hour_in_a_line() -> None:
    line = load_line(load(IDLE, BUSY), 80)
    assert line == "tok/s ▁█ 1,234  TTFT  █ 200ms  TPOT  █ 10ms  queue ▁█ 7"
    assert load_line(load(*[BUSY] * 359, IDLE), 80).endswith("queue ██████ 0")
    assert load_line(LOAD, 80) == "the load is shown after 10 s"


@given(st.lists(st.none() | st.floats(0, 1e9), max_size=400), st.integers(1, 50))
def test_a_sparkline_shows_each_peak(values: list[float | None], num_cells: int) -> None:
    line = sparkline(values, num_cells)
    assert len(line) == min(num_cells, len(values))
    known = [value for value in values if value is not None]
    assert ("█" in line) == (max(known, default=0.0) > 0)
    assert line.strip() == "" or known
