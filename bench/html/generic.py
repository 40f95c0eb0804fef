"""Results that have no page of their own: figures as facts, lists as tables."""

from typing import Any

from bench.html.elements import facts, section, table

_ROWS = 500
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
        elif isinstance(value, dict):
            parts.append(section(title, facts(value)))
        else:
            plain[title] = value
    return (section("Results", facts(plain)) if plain else "") + "".join(parts)
