"""Bars of the last requests in a terminal."""

from typing import Any

import msgspec
from rich.console import Console

from coordinator.http.timeline import timeline
from coordinator.record.record import RequestRecord
from deploy.requests_view import requests_table
from tests.coordinator.http.test_timeline import HANDED_OFF

COLOURS = {"90": "q", "34": "p", "33": "h", "32": "d"}


def told(**fields: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"request_id": "r", "coordinator": "c", "state": "finished"} | fields
    told: dict[str, Any] = msgspec.to_builtins(timeline(RequestRecord(**found), 102.0))
    return told


def drawn(*requests: dict[str, Any], width: int = 160) -> list[str]:
    """Each request's bar, a letter a cell; each line fits the width."""
    console = Console(
        width=width, force_terminal=True, color_system="standard", legacy_windows=False
    )
    with console.capture() as captured:
        console.print(requests_table(list(requests), width))
    *rows, legend = [line for line in captured.get().splitlines() if "█" in line]
    assert "the longest bar: " in legend
    bars = []
    for row in rows:
        parts = [part.split("m", 1) for part in row.split("\x1b[") if "█" in part]
        bars.append("".join(COLOURS[code] * text.count("█") for code, text in parts))
    return bars


def test_bars_of_all_requests_have_one_time_scale() -> None:
    whole = told(ended_at=102.0, **HANDED_OFF)
    short = told(ended_at=100.5, received_at=100.0, queued_at=100.0, state="cancelled")
    assert drawn(whole, short) == [
        "q" * 8 + "p" * 8 + "h" * 2 + "d" * 14,
        "q" * 8,
    ], "of 32 cells for 2 s"


def test_a_narrow_screen_has_shorter_bars_and_every_figure() -> None:
    whole = told(ended_at=102.0, **HANDED_OFF)
    assert drawn(whole, width=80) == ["qq" + "ppp" + "h" + "dddd"]


def test_a_stage_too_short_for_a_cell_is_seen_and_no_bar_is_too_long() -> None:
    times = HANDED_OFF | {"first_decode_at": 101.002, "transferred_at": 101.001}
    (bar,) = drawn(told(ended_at=101.003, **times))
    assert "h" in bar
    assert len(bar) <= 32


def test_requests_that_took_no_time_are_no_error() -> None:
    assert drawn(told(ended_at=100.0, received_at=100.0, queued_at=100.0)) == []
