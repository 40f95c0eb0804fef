"""The load of the last hour as one line of sparklines, for ``baton top``. Pure.

A load is the JSON of LoadSeries (coordinator/core/contract.py).
"""

from collections.abc import Sequence
from typing import Any

_BLOCKS = "▁▂▃▄▅▆▇█"
_SERIES = (
    ("tok/s", "output_tokens_per_s"), ("TTFT", "ttft_p50_s"), ("TPOT", "tpot_p50_s"),
    ("queue", "queued"),
)  # fmt: skip
_BESIDE = 14
"""Columns that the name and the value of a series take."""
_CELLS = 5, 40


def load_line(load: dict[str, Any], width: int) -> str:
    """Output tokens per second, the medians of TTFT and TPOT, and the queue: of each the last hour
    as a sparkline, and its newest value."""
    points = load["points"]
    if not points:
        return f"the load is shown after {load['period_s']} s"
    num_cells = min(max(width // len(_SERIES) - _BESIDE, _CELLS[0]), _CELLS[1])
    return "  ".join(
        f"{heading} {sparkline([point[name] for point in points], num_cells)} "
        f"{_value(name, points[-1][name])}"
        for heading, name in _SERIES
    )


def sparkline(values: Sequence[float | None], num_cells: int) -> str:
    """A character for each cell: the highest value of its time, relative to the highest of all, or
    a space if it has none. The oldest values come first; fewer values make fewer cells."""
    num_cells = min(num_cells, len(values))
    highest = max((value for value in values if value is not None), default=0.0)
    cells = []
    for cell in range(num_cells):
        first, end = (len(values) * n // num_cells for n in (cell, cell + 1))
        known = [value for value in values[first:end] if value is not None]
        share = max(known) / highest if known and highest else 0.0
        cells.append(_BLOCKS[round(share * (len(_BLOCKS) - 1))] if known else " ")
    return "".join(cells)


def _value(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    if not name.endswith("_s") or name.endswith("_per_s"):
        return f"{value:,.0f}"
    return f"{value:.2f}s" if value >= 1 else f"{value * 1000:.0f}ms"
