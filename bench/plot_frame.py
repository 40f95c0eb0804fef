"""What the plots of the docs share: their documents, bars, and the frame with background, title,
notes and colours for light and dark pages."""

import io
import json
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from bench.harness.html.charts import COLOURS, GREY, STYLE, Chart, Line, embedded, matplotlib

WIDTH, CHART_HEIGHT, LINE_HEIGHT, NOTE_LEN = 640, 340, 15, 100
DARK = ("#58a6ff", "#ff8c42", "#3fb950", "#e78ac3", "#e6b450", "#79c0ff", "#bc8cff", "#d19a86")
VARIABLES = {GREY: ("ink", "#424a53", "#b1bac4")} | {
    light: (f"line{i}", light, dark)
    for i, (light, dark) in enumerate(zip(COLOURS, DARK, strict=True))
}
"""Colours of charts.py: the CSS variable that replaces each, its light and its dark value."""


def read(files: Iterable[Path]) -> dict[str, Any]:
    """Result documents by the names of their files."""
    return {file.name: json.loads(file.read_text()) for file in files}


def drawn(draw: Callable[[Any], None], **style: str) -> str:
    """The <svg> element of a figure of matplotlib that ``draw`` fills."""
    lib, out = matplotlib(), io.BytesIO()
    with lib.rc_context({**STYLE, **style}):
        figure = lib.figure.Figure(figsize=(6.4, 3.4), layout="constrained")
        draw(figure)
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    return embedded(out.getvalue())


def plotted(
    lines: Sequence[Line], x_label: str, y_label: str, title: str, note: str,
    documents: Mapping[str, Any], *more_notes: str, **chart: Any,
) -> str:  # fmt: skip
    """Lines as a file of their own. Behind ``note`` stands when ``documents`` were measured.
    ``chart``: more of ``Chart``, whose ticks are the values of x if no others are given."""
    ticks = chart.pop("x_ticks", sorted({x for line in lines for x, _ in line.points}))
    figure = Chart(lines, x_label, y_label, x_ticks=ticks, **chart).svg()
    return framed(figure, title, [f"{note}, {measured(documents)}", *more_notes])


def bars(
    rows: Sequence[str], values: Mapping[str, Sequence[float]], x_label: str, form: str
) -> str:
    """The <svg> element of horizontal bars: for each row one of each kind of ``values``, which has
    a number for each row. ``form``: how a number is written."""

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        for offset, colour, (name, numbers) in zip(
            (-0.2, 0.2), COLOURS, values.items(), strict=False
        ):
            places = [row + offset for row in range(len(rows))]
            drawn_bars = axes.barh(places, numbers, 0.38, color=colour, label=name)
            axes.bar_label(drawn_bars, fmt=form, padding=3, fontsize=8)
        axes.set_yticks(range(len(rows)), list(rows))
        axes.invert_yaxis()
        axes.margins(x=0.1)
        axes.set_xlabel(x_label)
        axes.legend()

    return drawn(draw, **{"axes.grid.axis": "x"})


def framed(chart: str, title: str, notes: Sequence[str]) -> str:
    """A chart as a file of its own: with a background, a title, notes and colours for both
    settings of ``prefers-color-scheme``."""
    light = {name: value for name, value, _ in VARIABLES.values()}
    dark = {name: value for name, _, value in VARIABLES.values()}
    for colour, (name, _, _) in VARIABLES.items():
        chart = chart.replace(colour, f"var(--{name})")
    # matplotlib's names are digests of lengths, whose last bits differ from one CPU to another.
    for number, clip in enumerate(dict.fromkeys(re.findall(r'<clipPath id="(\w+)"', chart))):
        chart = chart.replace(clip, f"clip{number}")
    used = [name for name in light if f"var(--{name})" in chart]
    chart = re.sub(r' height="[^"]*pt"', "", chart, count=1)
    chart = chart.replace("<svg ", f'<svg y="28" width="{WIDTH}" height="{CHART_HEIGHT}" ', 1)
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
        f"{chart}\n{texts}</svg>\n"
    )


def _css(values: dict[str, str], names: Sequence[str]) -> str:
    """CSS declarations of the variables ``names``."""
    return " ".join(f"--{name}: {values[name]};" for name in names)


def measured(documents: Mapping[str, Any]) -> str:
    """When result documents were measured, at which commit, and their files."""
    days = sorted({document["environment"]["at"][:10] for document in documents.values()})
    commits = sorted({document["environment"]["commit"] for document in documents.values()})
    return f"{' and '.join(days)}, commit {' and '.join(commits)} ({', '.join(documents)})"
