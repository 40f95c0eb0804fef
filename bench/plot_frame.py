"""The frame of a plot of the docs: background, title, notes, colours for light and dark pages."""

import re
import textwrap
from collections.abc import Sequence
from typing import Any
from xml.sax.saxutils import escape

from bench.harness.html.charts import COLOURS, GREY

WIDTH, CHART_HEIGHT, LINE_HEIGHT, NOTE_LEN = 640, 340, 15, 100
DARK = ("#58a6ff", "#ff8c42", "#3fb950", "#e78ac3", "#e6b450", "#79c0ff", "#bc8cff", "#d19a86")
VARIABLES = {GREY: ("ink", "#424a53", "#b1bac4")} | {
    light: (f"line{i}", light, dark)
    for i, (light, dark) in enumerate(zip(COLOURS, DARK, strict=True))
}
"""Colours of charts.py: the CSS variable that replaces each, its light and its dark value."""


def framed(drawn: str, title: str, notes: Sequence[str]) -> str:
    """A chart as a file of its own: with a background, a title, notes and colours for both
    settings of ``prefers-color-scheme``."""
    light = {name: value for name, value, _ in VARIABLES.values()}
    dark = {name: value for name, _, value in VARIABLES.values()}
    for colour, (name, _, _) in VARIABLES.items():
        drawn = drawn.replace(colour, f"var(--{name})")
    used = [name for name in light if f"var(--{name})" in drawn]
    drawn = re.sub(r' height="[^"]*pt"', "", drawn, count=1)
    drawn = drawn.replace("<svg ", f'<svg y="28" width="{WIDTH}" height="{CHART_HEIGHT}" ', 1)
    below = 28 + CHART_HEIGHT + LINE_HEIGHT
    rows = [row for note in notes for row in textwrap.wrap(note, NOTE_LEN, subsequent_indent="   ")]
    height = below + LINE_HEIGHT * len(rows)
    texts = "".join(
        f'<text x="12" y="{below + LINE_HEIGHT * i}" font-size="11" xml:space="preserve">'
        f"{escape(row)}</text>\n"
        for i, row in enumerate(rows)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" font-family="sans-serif" role="img">\n<title>{escape(title)}</title>\n'
        f"<style>\n:root {{ --back: #ffffff; {_css(light, used)} }}\n"
        f"@media (prefers-color-scheme: dark) {{\n"
        f":root {{ --back: #0d1117; {_css(dark, used)} }}\n}}\n"
        f"text {{ fill: var(--ink); }}\n</style>\n"
        f'<rect width="{WIDTH}" height="{height}" rx="6" fill="var(--back)"/>\n'
        f'<text x="12" y="20" font-size="13" font-weight="600">{escape(title)}</text>\n'
        f"{drawn}\n{texts}</svg>\n"
    )


def _css(values: dict[str, str], names: Sequence[str]) -> str:
    """CSS declarations of the variables ``names``."""
    return " ".join(f"--{name}: {values[name]};" for name in names)


def measured(documents: dict[str, Any]) -> str:
    """When result documents were measured, at which commit, and their files."""
    days = sorted({document["environment"]["at"][:10] for document in documents.values()})
    commits = sorted({document["environment"]["commit"] for document in documents.values()})
    return f"{' and '.join(days)}, commit {' and '.join(commits)} ({', '.join(documents)})"
