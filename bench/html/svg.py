"""Line charts as SVG: axes, ticks, lines, points with their values as tooltips, a legend."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

WIDTH, HEIGHT = 640, 330
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 12, 44
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5195", "#8c564b")
QUIET_COLOURS = ("#8a8f95", "#b08d2e", "#5b8db8", "#a86aa4", "#5f9e6e", "#b5694b")
Scale = Literal["linear", "log"]


@dataclass(frozen=True)
class Line:
    """``points`` are (x, y); a y of None is a gap. ``quiet``: for comparison, drawn dashed."""

    name: str
    points: Sequence[tuple[float, float | None]]
    quiet: bool = False


@dataclass(frozen=True)
class Axis:
    """``scale`` log needs values above 0; others are left out."""

    label: str
    scale: Scale = "linear"
    ticks: Sequence[float] = ()
    top: float | None = None


def chart(lines: Sequence[Line], x: Axis, y: Axis) -> str:
    """One <svg>; a sentence where there is nothing to draw."""
    kept = [(line, _points(line, x, y)) for line in lines]
    kept = [(line, points) for line, points in kept if points]
    if not kept:
        return '<p class="none">nothing to draw</p>'
    xs = [point[0] for _, points in kept for point in points]
    ys = [point[1] for _, points in kept for point in points]
    across = _Span(x, [*xs, *x.ticks], LEFT, WIDTH - RIGHT, to_tick=False)
    up = _Span(y, [*ys, y.top] if y.top else ys, HEIGHT - BOTTOM, TOP)
    parts = [*_grid(across, up, x, y)]
    loud = quiet = 0
    legend = []
    for line, points in kept:
        if line.quiet:
            colour, quiet = QUIET_COLOURS[quiet % len(QUIET_COLOURS)], quiet + 1
        else:
            colour, loud = COLOURS[loud % len(COLOURS)], loud + 1
        parts.append(_drawn(line, points, colour, across, up))
        style = f"border-top:{'2px dashed' if line.quiet else '3px solid'} {colour}"
        legend.append(f'<span class="key"><i style="{style}"></i>{escape(line.name)}</span>')
    box = f'viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(y.label)}"'
    drawn = f"<svg {box}>{''.join(parts)}</svg>"
    return drawn if len(legend) == 1 else f'{drawn}<div class="legend">{"".join(legend)}</div>'


class _Span:
    """From values to pixels along one axis."""

    def __init__(
        self,
        axis: Axis,
        values: Sequence[float],
        begin: float,
        end: float,
        *,
        to_tick: bool = True,
    ) -> None:
        self._log = axis.scale == "log"
        low, high = min(values), max(values)
        if not self._log:
            low = min(0.0, low)
            high = high if high > low else low + 1
            self.ticks = list(axis.ticks) or _round_ticks(low, high)
            if to_tick:
                high = max(high, self.ticks[-1])
            self.ticks = [tick for tick in self.ticks if tick <= high]
        else:
            self.ticks = list(axis.ticks) or _log_ticks(low, high)
            low, high = min(low, self.ticks[0]), max(high, self.ticks[-1])
            high = high if high > low else low * 2
        self._low, self._high = self._at(low), self._at(high)
        self._begin, self._end = begin, end

    def __call__(self, value: float) -> float:
        share = (self._at(value) - self._low) / (self._high - self._low)
        return round(self._begin + share * (self._end - self._begin), 1)

    def _at(self, value: float) -> float:
        return math.log(value) if self._log else value


def _points(line: Line, x: Axis, y: Axis) -> list[tuple[float, float]]:
    return [
        (at, value)
        for at, value in line.points
        if value is not None
        and (y.scale == "linear" or value > 0)
        and (x.scale == "linear" or at > 0)
    ]


def _drawn(
    line: Line, points: Sequence[tuple[float, float]], colour: str, across: _Span, up: _Span
) -> str:
    path = " ".join(f"{across(at)},{up(value)}" for at, value in points)
    dash = ' stroke-dasharray="5 4"' if line.quiet else ""
    width = 1.5 if line.quiet else 2.2
    drawn = (
        f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}"{dash}/>'
    )
    if len(points) > 200:
        return drawn
    radius = 2 if line.quiet or len(points) > 40 else 3.5
    return drawn + "".join(
        f'<circle cx="{across(at)}" cy="{up(value)}" r="{radius}" fill="{colour}">'
        f"<title>{escape(line.name)}: {number(value)} at {number(at)}</title></circle>"
        for at, value in points
    )


def _grid(across: _Span, up: _Span, x: Axis, y: Axis) -> list[str]:
    floor, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    parts = []
    for tick in up.ticks:
        at = up(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{at}" y2="{at}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{at + 4}" text-anchor="end">{number(tick)}</text>')
    for tick in across.ticks:
        at = across(tick)
        parts.append(f'<line class="grid" x1="{at}" x2="{at}" y1="{TOP}" y2="{floor}"/>')
        parts.append(f'<text x="{at}" y="{floor + 16}" text-anchor="middle">{number(tick)}</text>')
    middle = (LEFT + right) / 2
    parts.append(
        f'<text x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">{escape(x.label)}</text>'
    )
    turned = f'transform="translate(13 {(TOP + floor) / 2}) rotate(-90)"'
    parts.append(f'<text {turned} text-anchor="middle">{escape(y.label)}</text>')
    return parts


def number(value: float) -> str:
    """Short: 13,437 and 2.39 and 0.0041."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 0.001 else f"{value:.1e}"


def _round_ticks(low: float, high: float) -> list[float]:
    """Five or so multiples of 1, 2 or 5 times a power of ten, from ``low`` to past ``high``."""
    rough = (high - low) / 5
    power = 10 ** math.floor(math.log10(rough))
    step = next(s * power for s in (1, 2, 5, 10) if s * power >= rough)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [step * n for n in range(first, last + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 in each decade, or powers of ten where that would be too many."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    steps = (1, 2, 5) if last - first <= 3 else (1,)
    all_ticks = [s * 10.0**n for n in range(first, last + 1) for s in steps]
    below = [tick for tick in all_ticks if tick <= low][-1:]
    above = [tick for tick in all_ticks if tick >= high][:1]
    return below + [tick for tick in all_ticks if low < tick < high] + above
