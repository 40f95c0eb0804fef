"""Decode steps that a spread group times to correct the table of step times. Pure.

The shipped table was measured on other GPUs. Few points, timed by an idle group, show by how much
its own steps differ; times that were not measured are scaled by the nearest ones that were.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import NamedTuple

from decode.spread_table import LOCAL, Curve, StepTable, StepTime, between
from engine.spread.shapes import Shapes

PLAIN_ROWS, DRAFT_ROWS = (16, 64, 256, 8, 32, 128), (8, 64, 4, 16, 32)
"""Sequences of each member, without drafts and with the most. The first ones say most, should the
time not suffice for all."""
ENOUGH = 0.5
"""Share of the timed steps without which a table is not corrected."""


class Point(NamedTuple):
    """Size of a decode step to time: as a local step, and as one that all members share."""

    rows: int
    drafts: int = 0


class TimedStep(NamedTuple):
    """Time in ms of a step of ``sharing`` members, with ``rows`` sequences of each that decodes and
    ``num_tokens`` tokens in all: fewer than of as many members with sequences if some lend."""

    sharing: int
    rows: int
    drafts: int
    num_tokens: int
    ms: float


def points(shapes: Shapes) -> tuple[Point, ...]:
    """The sizes that a group times, in this order, the same for all members.

    >>> from engine.spread.shapes import plain_shapes
    >>> [point.rows for point in points(plain_shapes((16, 48)))]
    [16, 8, 32]
    """
    most_drafts = max(shape.num_drafts for shape in shapes)
    plain = [Point(rows) for rows in PLAIN_ROWS if rows <= _most_rows(shapes, 0)]
    if not most_drafts:
        return tuple(plain)
    room = _most_rows(shapes, most_drafts)
    return (*plain, *(Point(rows, most_drafts) for rows in DRAFT_ROWS if rows <= room))


def suffice(timed: Collection[TimedStep], num_points: int) -> bool:
    """True if enough steps of both kinds were timed to correct a table by them."""
    num_local = sum(step.sharing == LOCAL for step in timed)
    return min(num_local, len(timed) - num_local) >= max(1.0, ENOUGH * num_points)


def corrected(table: StepTable, timed: Sequence[TimedStep], sharing: int) -> StepTable:
    """``table`` as ``timed`` steps of a group of ``sharing`` members correct it.

    Measured times replace those of the table. Its other times are multiplied by measured over
    table's time, interpolated over rows: local ones by that of local steps, spread ones by that of
    spread steps, with the nearest number of drafts that was timed. So steps of other numbers of
    members are estimates. Steps with drafts that the table lacks are ignored."""
    known = [step for step in timed if table.has(step.sharing, step.drafts)]
    local = [step.ms / table.local_ms(step.rows, step.drafts) for step in known
             if step.sharing == LOCAL]  # fmt: skip
    experts = replace(table.experts, read_ms=table.experts.read_ms * median(local or [1.0]))
    even = [StepTime(s, rows, drafts, ms + experts.unread_ms(s, rows, drafts, num_tokens))
            for s, rows, drafts, num_tokens, ms in known]  # fmt: skip
    ratios = _ratios(table, even)
    counts = {step.sharing for step in table.steps} | {sharing}
    scaled = {
        step[:3]: step.ms * _ratio(ratios, step) for each in counts for step in table.steps_of(each)
    }
    scaled |= {step[:3]: step.ms for step in even}
    steps = [StepTime(*key, ms) for key, ms in scaled.items()]
    return StepTable(steps, "measured", experts, counts - {LOCAL, sharing})


def differences(table: StepTable, timed: Sequence[TimedStep]) -> Mapping[bool, tuple[float, float]]:
    """Least and most of measured over ``table``'s time, of spread steps (True) and of local ones
    (False), as far as there are any."""
    found: dict[bool, list[float]] = {}
    for step in timed:
        if table.has(step.sharing, step.drafts):
            ms = table.spread_ms(step.sharing, step.rows, step.drafts, step.num_tokens)
            found.setdefault(step.sharing != LOCAL, []).append(step.ms / ms)
    return {spread: (min(each), max(each)) for spread, each in found.items()}


def _most_rows(shapes: Shapes, drafts: int) -> int:
    return max(shape.bucket for shape in shapes if shape.num_drafts == drafts)


def _ratios(table: StepTable, measured: Sequence[StepTime]) -> Mapping[tuple[bool, int], Curve]:
    """Measured over table's time by rows, for spread and for local steps by drafts."""
    curves: dict[tuple[bool, int], list[tuple[float, float]]] = {}
    for step in sorted(measured):
        ratio = step.ms / table.even_ms(step.sharing, step.rows, step.drafts)
        curves.setdefault((step.sharing != LOCAL, step.drafts), []).append((step.rows, ratio))
    return curves


def _ratio(ratios: Mapping[tuple[bool, int], Curve], step: StepTime) -> float:
    is_spread = step.sharing != LOCAL
    timed = [drafts for spread, drafts in ratios if spread == is_spread]
    if not timed:
        return 1.0
    nearest = min(timed, key=lambda drafts: (abs(drafts - step.drafts), drafts))
    curve = ratios[is_spread, nearest]
    return between(curve, min(max(step.rows, curve[0][0]), curve[-1][0]))
