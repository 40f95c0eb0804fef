"""The last requests, for ``baton top``: bars on one time scale, or lines of ``name=value``. Pure.

A request is the JSON of RequestTimeline (coordinator/http/timeline.py).
"""

import time
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

_COLUMNS = ("received", "id", "state", "prompt", "cached", "output", "ttft", "took", "workers")
_NUMBERS = ("prompt", "cached", "output", "ttft", "took")
_STAGES = {"queue": "bright_black", "prefill": "blue", "handoff": "yellow", "decode": "green"}
_EARLIER = "white"
_STATES = {"finished": "green", "failed": "bold red", "cancelled": "yellow"}
_NOT_IF_NARROW = ("cached", "workers")
_WIDE = 140
"""Columns of a screen from which on those are shown too."""
_BESIDE_BAR = 70
_BAR_CELLS = 10, 32
_UNKNOWN = "-"


def request_lines(requests: list[dict[str, Any]]) -> list[str]:
    """One line for each request, with the durations of its stages at the end."""
    found = []
    for request in requests:
        cells = dict(zip(_COLUMNS, _cells(request), strict=True))
        stages = {stage["name"]: _seconds(stage["duration_s"]) for stage in request["stages"]}
        told = {"request": cells.pop("id"), **cells, **stages}
        found.append("  ".join(f"{name.replace(' ', '_')}={cell}" for name, cell in told.items()))
    return found


def requests_table(requests: list[dict[str, Any]], width: int) -> Group:
    """A table of requests whose bars share one time scale: the longest fills its column. A screen
    of fewer than 140 columns shows neither cached tokens nor the workers' names."""
    longest_s = max((request["duration_s"] for request in requests), default=0.0)
    names = [name for name in _COLUMNS if width >= _WIDE or name not in _NOT_IF_NARROW]
    num_cells = min(max(width - _BESIDE_BAR, _BAR_CELLS[0]), _BAR_CELLS[1])
    table = Table(box=None, pad_edge=False)
    for name in names:
        table.add_column(name, justify="right" if name in _NUMBERS else "left", no_wrap=True)
    table.add_column("stages", no_wrap=True)
    for request in requests:
        told = dict(zip(_COLUMNS, map(Text, _cells(request)), strict=True))
        told["state"].stylize(_STATES.get(request["state"], ""))
        table.add_row(*(told[name] for name in names), _bar(request, longest_s, num_cells))
    legend = Text.assemble(*((f"█ {name}  ", style) for name, style in _STAGES.items()))
    legend.append(f"the longest bar: {_seconds(longest_s)}")
    return Group(table, legend)


def _cells(request: dict[str, Any]) -> tuple[str, ...]:
    workers = dict.fromkeys(w for w in (request["prefill_worker"], request["decode_worker"]) if w)
    failure = f" {request['failure']['code']}" if request["failure"] else ""
    ttft_s = request["ttft_s"]
    return (
        time.strftime("%H:%M:%S", time.localtime(request["received_at"])),
        request["id"][:8],
        request["state"] + failure,
        str(request["prompt_tokens"]),
        str(request["cached_tokens"]),
        str(request["completion_tokens"]),
        _UNKNOWN if ttft_s is None else _seconds(ttft_s),
        _seconds(request["duration_s"]),
        ">".join(workers) or _UNKNOWN,
    )


def _bar(request: dict[str, Any], longest_s: float, num_cells: int) -> Text:
    """A bar with cells by duration, at least one per stage, so that short stages are visible."""
    stages = [stage for stage in request["stages"] if stage["duration_s"] > 0]
    cells: list[int] = []
    for stage in stages:
        end_s = stage["start_s"] + stage["duration_s"]
        cells.append(max(1, round(num_cells * end_s / longest_s) - sum(cells)))
    while sum(cells) > num_cells:
        cells[cells.index(max(cells))] -= 1
    bar = Text()
    for stage, num in zip(stages, cells, strict=True):
        bar.append("█" * num, _STAGES.get(stage["name"], _EARLIER))
    return bar


def _seconds(seconds: float) -> str:
    return (
        f"{seconds:.2f}s" if seconds >= 1 else f"{seconds * 1000:.{1 if seconds < 0.01 else 0}f}ms"
    )
