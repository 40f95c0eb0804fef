"""Line charts: as SVG to stand in a page, as SVG and PNG files, and their numbers as CSV."""

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from bench.harness.cannot_measure import CannotMeasure
from telemetry.version import install_command

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5195", "#8c564b")
QUIET_COLOURS = ("#8a8f95", "#b08d2e", "#5b8db8", "#a86aa4", "#5f9e6e", "#b5694b")
GREY = "#808890"  # readable on a light and on a dark page
STYLE = {
    "svg.fonttype": "none", "svg.hashsalt": "baton", "font.family": "sans-serif", "font.size": 9,
    "text.color": GREY, "axes.edgecolor": GREY, "axes.labelcolor": GREY, "xtick.color": GREY,
    "ytick.color": GREY, "grid.color": GREY, "grid.alpha": 0.25, "axes.grid": True,
    "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False,
}  # fmt: skip


class MatplotlibMissing(CannotMeasure):
    """matplotlib is not installed; the message says how to install it."""


@dataclass(frozen=True)
class Line:
    """A line of a chart. ``points``: (x, y), where a y of None is a gap. ``quiet``: dashed, for
    comparison. ``band``: (x, lowest, highest) around the line. ``labels``: a text for each point.
    ``colour``: the number of its colour; lines with the same number share one."""

    name: str
    points: Sequence[tuple[float, float | None]]
    quiet: bool = False
    band: Sequence[tuple[float, float, float]] = ()
    labels: Sequence[str] = ()
    colour: int | None = None


def matplotlib() -> Any:
    """The package; raises MatplotlibMissing."""
    try:
        import matplotlib.figure
        import matplotlib.ticker
    except ImportError:
        raise MatplotlibMissing(
            f"reports need matplotlib, which is not installed: {install_command('bench')}"
        ) from None
    return matplotlib


def embedded(file: bytes) -> str:
    """The <svg> element of an SVG file, without metadata and with no width of its own."""
    svg = file.decode()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    return re.sub(r'<svg ([^>]*?)width="[^"]*" ', r"<svg \1", svg, count=1)


@dataclass(frozen=True)
class Chart:
    """A chart. With ``x_ticks`` the x axis is logarithmic and has only those ticks; otherwise its
    ticks are whole numbers where all x are. A logarithmic y axis leaves out values that are not
    above 0. ``top``: where a linear y axis ends. ``limits``: both ends of the y axis, so that
    charts have one scale."""

    lines: Sequence[Line]
    x_label: str
    y_label: str
    x_ticks: Sequence[float] = ()
    log_y: bool = False
    top: float | None = None
    limits: tuple[float, float] | None = None

    @property
    def kept(self) -> list[tuple[Line, list[tuple[float, float]]]]:
        """The lines that have points to draw."""
        points = [
            (line, [(x, y) for x, y in line.points if y is not None and (not self.log_y or y > 0)])
            for line in self.lines
        ]
        return [(line, found) for line, found in points if found]

    def svg(self) -> str:
        """One <svg> element to stand in a page; "" if there is nothing to draw."""
        if not self.kept:
            return ""
        return embedded(self._svg)

    def file(self, form: Literal["svg", "png"]) -> bytes:
        """The content of a file: SVG on no ground, PNG on white."""
        return self._svg if form == "svg" else self._drawn(form)

    @cached_property
    def _svg(self) -> bytes:
        """The page and the file have the same drawing."""
        return self._drawn("svg")

    def _drawn(self, form: Literal["svg", "png"]) -> bytes:
        lib, out = matplotlib(), io.BytesIO()
        with lib.rc_context(STYLE):
            metadata = {"Date": None} if form == "svg" else None
            self._figure(lib).savefig(
                out, format=form, transparent=form == "svg", metadata=metadata, dpi=200
            )
        return out.getvalue()

    def csv(self) -> str:
        """A row for each x, a column for each line."""
        values = [dict(line.points) for line, _ in self.kept]
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([self.x_label or "x", *(line.name for line, _ in self.kept)])
        for x in sorted({x for points in values for x in points}):
            row = [points.get(x) for points in values]
            writer.writerow([f"{x:g}", *("" if y is None else f"{y:.6g}" for y in row)])
        return out.getvalue()

    def _figure(self, lib: Any) -> Any:
        kept = self.kept
        figure = lib.figure.Figure(figsize=(6.4, 3.4), layout="constrained")
        axes = figure.subplots()
        colours = {False: iter(COLOURS * len(kept)), True: iter(QUIET_COLOURS * len(kept))}
        for line, points in kept:
            marker = "" if len(points) > 60 else "."
            shared = None if line.colour is None else COLOURS[line.colour % len(COLOURS)]
            colour = shared or next(colours[line.quiet])
            axes.plot(
                *zip(*points, strict=True), label=line.name, color=colour,
                linestyle="--" if line.quiet else "-", linewidth=1 if line.quiet else 1.8,
                marker=marker,
            )  # fmt: skip
            if line.band:
                axes.fill_between(
                    *zip(*line.band, strict=True), color=colour, alpha=0.2, linewidth=0
                )
            for point, label in zip(line.points, line.labels, strict=False):
                if point in points:
                    axes.annotate(
                        label, point, fontsize=7, xytext=(4, 4), textcoords="offset points"
                    )
        axes.set(xlabel=self.x_label, ylabel=self.y_label)
        number = lib.ticker.StrMethodFormatter("{x:,g}")
        if self.x_ticks:
            axes.set_xscale("log")
            axes.set_xticks(self.x_ticks, [f"{tick:,g}" for tick in self.x_ticks])
            axes.minorticks_off()
        elif all(float(x).is_integer() for _, points in kept for x, _ in points):
            axes.xaxis.set_major_locator(lib.ticker.MaxNLocator(integer=True))
        if self.log_y:
            axes.set_yscale("log")
            axes.yaxis.set_minor_locator(lib.ticker.LogLocator(subs=(2, 5)))
            axes.yaxis.set_minor_formatter(number)
        else:
            lowest = min(y for _, points in kept for _, y in points)
            axes.set_ylim(min(0.0, lowest), self.top)
        if self.limits:
            axes.set_ylim(*self.limits)
        axes.yaxis.set_major_formatter(number)
        if len(kept) > 4:
            figure.legend(loc="outside lower center", ncols=2, fontsize=8)
        elif len(kept) > 1:
            axes.legend(loc="best", fontsize=8)
        return figure
