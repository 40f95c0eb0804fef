"""Line charts as SVG, to stand in a page."""

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.harness.cannot_measure import CannotMeasure

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
    comparison."""

    name: str
    points: Sequence[tuple[float, float | None]]
    quiet: bool = False


def matplotlib() -> Any:
    """The package; raises MatplotlibMissing."""
    try:
        import matplotlib.figure
        import matplotlib.ticker
    except ImportError:
        raise MatplotlibMissing(
            "reports need matplotlib, which is not installed: pip install 'baton-serve[bench]'"
        ) from None
    return matplotlib


def chart(
    lines: Sequence[Line],
    x_label: str,
    y_label: str,
    *,
    x_ticks: Sequence[float] = (),
    log_y: bool = False,
    top: float | None = None,
) -> str:
    """A chart as one <svg> element; "" if there is nothing to draw. With ``x_ticks`` the x axis is
    logarithmic and has only those ticks. A logarithmic y axis leaves out values that are not
    above 0."""
    kept = [
        (line, [(x, y) for x, y in line.points if y is not None and (not log_y or y > 0)])
        for line in lines
    ]
    kept = [(line, points) for line, points in kept if points]
    if not kept:
        return ""
    lib = matplotlib()
    with lib.rc_context(STYLE):
        figure = lib.figure.Figure(figsize=(6.4, 3.4), layout="constrained")
        axes = figure.subplots()
        colours = {False: iter(COLOURS * len(kept)), True: iter(QUIET_COLOURS * len(kept))}
        for line, points in kept:
            marker = "" if len(points) > 60 else "."
            axes.plot(
                *zip(*points, strict=True), label=line.name, color=next(colours[line.quiet]),
                linestyle="--" if line.quiet else "-", linewidth=1 if line.quiet else 1.8,
                marker=marker,
            )  # fmt: skip
        axes.set(xlabel=x_label, ylabel=y_label)
        number = lib.ticker.StrMethodFormatter("{x:,g}")
        if x_ticks:
            axes.set_xscale("log")
            axes.set_xticks(x_ticks, [f"{tick:,g}" for tick in x_ticks])
            axes.minorticks_off()
        if log_y:
            axes.set_yscale("log")
            axes.yaxis.set_minor_locator(lib.ticker.LogLocator(subs=(2, 5)))
            axes.yaxis.set_minor_formatter(number)
        else:
            lowest = min(y for _, points in kept for _, y in points)
            axes.set_ylim(min(0.0, lowest), top)
        axes.yaxis.set_major_formatter(number)
        if len(kept) > 4:
            figure.legend(loc="outside lower center", ncols=2, fontsize=8)
        elif len(kept) > 1:
            axes.legend(loc="best", fontsize=8)
        return _svg(figure)


def _svg(figure: Any) -> str:
    """The figure as SVG without the parts that only a file needs: XML header, metadata, size."""
    out = io.StringIO()
    figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    svg = out.getvalue()[out.getvalue().index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    return re.sub(r'<svg ([^>]*?)width="[^"]*" ', r"<svg \1", svg, count=1)
