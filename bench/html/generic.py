"""Results that have no page of their own: figures as facts, lists as tables."""

from typing import Any

from bench.html.elements import facts, figure, figures, section, table
from bench.html.svg import Axis, Line, chart

_ROWS = 500
_SERIES = 20
_ELSEWHERE = ("gpu", "timeline")


def generic(found: dict[str, Any]) -> str:
    results = found["results"]
    plain: dict[str, Any] = {}
    parts = []
    for name, value in results.items():
        title = name.replace("_", " ")
        if name in _ELSEWHERE:
            continue
        if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            columns = list(dict.fromkeys(key for item in value for key in item))
            rows = [[item.get(column) for column in columns] for item in value[:_ROWS]]
            more = f"<p class='note'>{len(value) - _ROWS} more</p>" if len(value) > _ROWS else ""
            headings = [column.replace("_", " ") for column in columns]
            parts.append(section(title, table(headings, rows), more))
        elif _is_series(value):
            points = list(enumerate(value))
            drawn = chart([Line(title, points)], Axis(""), Axis(title))
            parts.append(section(title, figures(figure(title, drawn))))
        elif isinstance(value, dict):
            parts.append(section(title, facts(value)))
        else:
            plain[title] = value
    return (section("Results", facts(plain)) if plain else "") + "".join(parts)


def _is_series(value: Any) -> bool:
    """Too many numbers to read."""
    return (
        isinstance(value, list)
        and len(value) > _SERIES
        and all(isinstance(item, int | float) for item in value)
    )
