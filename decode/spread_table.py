"""How long decode steps take, local ones and those that members compute together.

``spread_steps.json`` is the table that is shipped (``python -m bench.spread_table``): local steps
and those of two members were measured on two H200s, those of more members are estimated, and
corrected by what two took. An idle group corrects it by a few steps of its own GPUs
(spread_trials.py); ``python -m bench.spread_step --table FILE`` measures them all.
"""

import json
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import inf
from pathlib import Path
from typing import Any, Literal, NamedTuple

SHIPPED = Path(__file__).with_name("spread_steps.json")
LOCAL = 1
"""Members that share a step of none."""
Source = Literal["estimated", "measured"]
Curve = Sequence[tuple[float, float]]


class StepTime(NamedTuple):
    """Time of a step that ``sharing`` members compute, with ``rows`` sequences of each member and
    ``drafts`` drafts to verify for each sequence: ms from one step to the next."""

    sharing: int
    rows: int
    drafts: int
    ms: float


@dataclass(frozen=True)
class Experts:
    """The ``num`` experts of a layer; a token activates ``per_token`` of them. Reading one expert
    in every layer takes ``read_ms``. Routing is assumed to be uniform."""

    num: int = 256
    per_token: int = 8
    read_ms: float = 0.0585

    def distinct(self, num_tokens: float) -> float:
        """Expected number of distinct experts that ``num_tokens`` tokens activate in one layer.

        >>> [round(Experts().distinct(n), 1) for n in (1, 16, 64)]
        [8.0, 102.0, 222.4]
        """
        untouched: float = (1 - self.per_token / self.num) ** num_tokens
        return self.num * (1 - untouched)

    def unread_ms(self, sharing: int, most_rows: int, drafts: int, num_tokens: int) -> float:
        """How much less time a step of ``num_tokens`` tokens takes than one in which each of the
        ``sharing`` members has ``most_rows`` sequences: the reading of the experts that only the
        missing tokens would have activated."""
        even = self.distinct(sharing * most_rows * (1 + drafts))
        return self.read_ms * max(0.0, even - self.distinct(num_tokens)) / sharing


class StepTable:
    """Times between measured sizes are linear, and go on from the last two. With more members than
    were measured, a step takes as long as with the most. Steps of each number of members were
    measured without drafts too, and local ones with each number of drafts that spread ones have.
    ``estimated``: numbers of members whose steps were not measured, in a table of measured ones.

    Raises ValueError if some are missing."""

    def __init__(
        self,
        steps: Iterable[StepTime],
        source: Source,
        experts: Experts | None = None,
        estimated: Collection[int] = (),
    ) -> None:
        self.source = source
        self.estimated = frozenset(estimated)
        self.experts = experts or Experts()
        self.steps = sorted(steps)
        curves: dict[tuple[int, int], list[tuple[float, float]]] = {}
        for step in self.steps:
            curves.setdefault((step.sharing, step.drafts), []).append((step.rows, step.ms))
        self._curves: Mapping[tuple[int, int], Curve] = {
            key: sorted(curve) for key, curve in curves.items()
        }
        self._sharing = sorted({sharing for sharing, _ in curves})
        if self._sharing[:1] != [LOCAL] or len(self._sharing) < 2:
            raise ValueError("no local steps, or no spread ones")
        for sharing, drafts in curves:
            for needed in ((sharing, 0), (LOCAL, drafts)):
                if needed not in curves:
                    raise ValueError(
                        f"steps of {sharing} members with {drafts} drafts, but none of {needed[0]} "
                        f"with {needed[1]}"
                    )

    def source_of(self, sharing: int) -> Source:
        """Where the times of steps that so many members share come from."""
        return "estimated" if self._nearest(sharing) in self.estimated else self.source

    def has(self, sharing: int, drafts: int) -> bool:
        """Whether steps with so many drafts were measured."""
        return (self._nearest(sharing), drafts) in self._curves

    def steps_of(self, sharing: int) -> list[StepTime]:
        """The steps whose times are those of ``sharing`` members, as steps of so many."""
        known = self._nearest(sharing)
        return [step._replace(sharing=sharing) for step in self.steps if step.sharing == known]

    def local_ms(self, rows: int, drafts: int) -> float:
        """Time of a local step."""
        return self.even_ms(LOCAL, rows, drafts)

    def even_ms(self, sharing: int, rows: int, drafts: int) -> float:
        """Time of a step that ``sharing`` members with ``rows`` sequences each compute."""
        return between(self._curves[self._nearest(sharing), drafts], rows)

    def spread_ms(self, sharing: int, most_rows: int, drafts: int, num_tokens: int) -> float:
        """Time of a step that ``sharing`` members compute, with at most ``most_rows`` rows of one
        member and ``num_tokens`` tokens in all: the time with ``most_rows`` of each, less the
        reading of the experts that the missing tokens would have activated."""
        unread_ms = self.experts.unread_ms(sharing, most_rows, drafts, num_tokens)
        return self.even_ms(sharing, most_rows, drafts) - unread_ms

    def _nearest(self, sharing: int) -> int:
        """The most members in the table that are at most ``sharing``; its fewest if none are."""
        if sharing == LOCAL:
            return LOCAL
        shared = self._sharing[1:]
        return max((each for each in shared if each <= sharing), default=shared[0])


def between(curve: Curve, x: float) -> float:
    """Linear between the points of ``curve``, and on from its last two; its first value below.

    >>> [between([(8, 4.0), (16, 6.0)], x) for x in (1, 12, 24)]
    [4.0, 5.0, 8.0]
    """
    xs = [at for at, _ in curve]
    right = min(bisect_left(xs, x), len(xs) - 1)
    if right == 0:
        return curve[0][1]
    (x0, y0), (x1, y1) = curve[right - 1], curve[right]
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)


def document(
    steps: Iterable[StepTime], source: Source, basis: str, experts: Experts, **more: Any
) -> dict[str, Any]:
    """What ``read`` takes; ``basis`` says where the times are from."""
    return {
        "kind": "spread-steps", "source": source, "basis": basis, **more,
        "experts": [experts.num, experts.per_token, experts.read_ms],
        "steps": [[s.sharing, s.rows, s.drafts, round(s.ms, 3)] for s in sorted(steps)],
    }  # fmt: skip


def read(path: Path, name: str = "spread_table") -> StepTable:
    """Raises ValueError naming the setting."""
    try:
        return parsed(json.loads(path.read_text()))
    except (OSError, ValueError) as error:
        raise ValueError(f"{name}: {path}: {error}") from None


def parsed(found: Any) -> StepTable:
    """The table of a ``document``. Raises ValueError."""
    try:
        if found["kind"] != "spread-steps" or found["source"] not in ("estimated", "measured"):
            raise ValueError("it is no table of spread steps")
        steps = [
            StepTime(int(n), int(rows), int(k), float(ms)) for n, rows, k, ms in found["steps"]
        ]
        if any(step.sharing < 1 or step.rows < 1 or not 0 < step.ms < inf for step in steps):
            raise ValueError("a step of no member, of no sequence, or of no finite time")
        num, per_token, read_ms = found["experts"]
        experts = Experts(int(num), int(per_token), float(read_ms))
        return StepTable(steps, found["source"], experts, found.get("estimated", ()))
    except (KeyError, TypeError, IndexError, OverflowError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None


@cache
def shipped() -> StepTable:
    """The table of this repository."""
    return read(SHIPPED)
