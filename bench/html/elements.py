"""The pieces that a report is made of."""

from collections.abc import Sequence
from html import escape
from typing import Any

from bench.html.svg import number

_SHOWN = 20


def cell(value: Any) -> str:
    """A value as HTML text."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return number(value)
    if isinstance(value, list | tuple):
        return ", ".join(cell(item) for item in value) or "–"
    if isinstance(value, dict):
        return ", ".join(f"{escape(str(name))} {cell(item)}" for name, item in value.items()) or "–"
    return escape(str(value))


def table(headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Numbers to the right."""
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join(f"<tr>{''.join(_td(value) for value in row)}</tr>" for row in rows)
    inside = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return f"<div class='wide'><table>{inside}</table></div>"


def facts(found: dict[str, Any]) -> str:
    """Names and values, a row each."""
    rows = "".join(
        f"<tr><th>{escape(str(name).replace('_', ' '))}</th><td>{cell(value)}</td></tr>"
        for name, value in found.items()
    )
    return f"<table class='facts'>{rows}</table>"


def section(title: str, *parts: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{''.join(parts)}</section>"


def figure(title: str, drawing: str, note: str = "") -> str:
    under = f"<p class='note'>{escape(note)}</p>" if note else ""
    return f"<figure><figcaption>{escape(title)}</figcaption>{drawing}{under}</figure>"


def figures(*parts: str) -> str:
    return f"<div class='figures'>{''.join(parts)}</div>"


def cards(found: Sequence[tuple[str, Any]]) -> str:
    """The few figures to see first."""
    each = "".join(
        f"<div class='card'><b>{cell(value)}</b><span>{escape(name)}</span></div>"
        for name, value in found
    )
    return f"<div class='cards'>{each}</div>"


def failures(listed: Sequence[dict[str, Any]]) -> str:
    """Every failed request, folded away where they are many."""
    if not listed:
        return "<p>No request failed.</p>"
    columns = (
        "label",
        "failure",
        "status",
        "received_tokens",
        "received_bytes",
        "after_ms",
        "detail",
    )
    rows = [[entry.get(column) for column in columns] for entry in listed]
    found = table([column.replace("_", " ") for column in columns], rows)
    if len(listed) <= _SHOWN:
        return found
    return f"<details><summary>{len(listed)} requests</summary>{found}</details>"


def _td(value: Any) -> str:
    kind = " class='n'" if isinstance(value, int | float) and not isinstance(value, bool) else ""
    return f"<td{kind}>{cell(value)}</td>"
