"""What is measured on a node, in which order, and what of it fits into a time. Pure.

A part needs a stack, which it shares with its neighbours, or makes its own. Parts run in the order
of the plan, so that each stack is started once. Where time is short, the least important parts are
left out (``chosen``), and a call goes as far as it comes (``fits``).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal

from bench.setups import Setup

Mode = Literal["plain", "spread", "drafts"]
Kind = Literal["doctor", "levels", "handoff", "interference", "crowd", "soak"]
MODES: tuple[Mode, ...] = ("plain", "spread", "drafts")
IMPORTANCE: tuple[tuple[Mode, Kind], ...] = (
    ("plain", "doctor"), ("plain", "levels"), ("plain", "handoff"),
    ("plain", "interference"), ("plain", "soak"), ("plain", "crowd"), ("spread", "levels"),
    ("spread", "crowd"), ("drafts", "levels"), ("drafts", "handoff"),
)  # fmt: skip
KINDS: tuple[Kind, ...] = ("doctor", "levels", "handoff", "interference", "crowd", "soak")
"""In the order in which they run."""
ALONE: frozenset[Kind] = frozenset({"doctor", "soak"})
"""Parts that need no stack or start one of their own."""


@dataclass(frozen=True)
class Served:
    """A stack to start. ``plain``: neither spread steps nor drafts."""

    setup: Setup
    mode: Mode = "plain"

    @property
    def name(self) -> str:
        name = self.setup.name.replace(":", "-").replace("+", "-")
        return name if self.mode == "plain" else f"{name}-{self.mode}"

    def arguments(self) -> list[str]:
        """Arguments for ``baton up``."""
        speculate = "auto" if self.mode == "drafts" else "off"
        return [*self.setup.arguments(), "--speculate", speculate]

    def settings(self) -> Mapping[str, object]:
        """As BATON_* variables."""
        return {"spread": "auto" if self.mode == "spread" else "off"}


@dataclass(frozen=True)
class Part:
    """One measurement, with its own result file. ``seconds`` is an estimate; ``limit_s`` is what is
    left of a call."""

    kind: Kind
    served: Served
    seconds: float
    limit_s: float = inf

    @property
    def name(self) -> str:
        return self.kind if self.kind == "doctor" else f"{self.served.name}-{self.kind}"

    @property
    def result_kind(self) -> str:
        """Kind of its result file. ``baton bench throughput`` measures levels and crowds."""
        return "throughput" if self.kind in ("levels", "crowd") else f"node {self.kind}"

    @property
    def stack(self) -> Served | None:
        """The stack that it shares with other parts."""
        return None if self.kind in ALONE else self.served

    @property
    def deadline_s(self) -> float:
        """Seconds after which the part is given up."""
        return min(60.0 + 2 * self.seconds, self.limit_s)


@dataclass(frozen=True)
class Starts:
    """Seconds to start a stack, the first one and each later one, and to stop it."""

    first_s: float
    later_s: float
    stop_s: float = 5.0

    def of(self, number: int) -> float:
        """Seconds to start and stop a stack when ``number`` stacks were started before it."""
        return (self.later_s if number else self.first_s) + self.stop_s


def wanted(
    setups: Sequence[Setup], modes: Collection[Mode], kinds: Collection[Kind]
) -> list[tuple[Kind, Served]]:
    """In the order of the plan."""
    served = [
        Served(setup, mode)
        for mode in MODES
        for setup in setups
        if mode in modes and (mode != "spread" or setup.num_decode > 1)
    ]
    return [
        (kind, each)
        for each in served
        for kind in KINDS
        if kind in kinds and _belongs(kind, each, served)
    ]


def _belongs(kind: Kind, served: Served, among: Sequence[Served]) -> bool:
    if kind == "doctor":
        return served == among[0]
    if (served.mode, kind) not in IMPORTANCE:
        return False
    if kind == "soak":  # of handoffs: once is enough
        return served.setup.num_prefill > 0 and served == _first_split(among)
    return kind != "handoff" or served.setup.num_prefill > 0


def _first_split(among: Iterable[Served]) -> Served | None:
    return next((each for each in among if each.setup.num_prefill), None)


def total_s(parts: Iterable[Part], starts: Starts) -> float:
    """Seconds of all parts, in the order of the plan, with the starts of their stacks."""
    every = list(parts)
    stacks = list(dict.fromkeys(part.stack for part in every if part.stack))
    return sum(p.seconds for p in every) + sum(starts.of(n) for n in range(len(stacks)))


def chosen(parts: Sequence[Part], budget_s: float, starts: Starts) -> list[Part]:
    """The most important ones that take no longer together, in the order of the plan."""
    taken: set[str] = set()
    for part in sorted(parts, key=_importance):
        with_it = [p for p in parts if p.name in taken or p is part]
        if total_s(with_it, starts) <= budget_s:
            taken.add(part.name)
    return [part for part in parts if part.name in taken]


def _importance(part: Part) -> int:
    mode: Mode = "plain" if part.kind == "doctor" else part.served.mode
    return IMPORTANCE.index((mode, part.kind))


def fits(
    part: Part, others: Iterable[Part], left_s: float, running: Served | None, started: int,
    starts: Starts,
) -> bool:  # fmt: skip
    """Whether there is time for it now, and to stop the stacks; ``running`` is the stack that is
    up, after ``started``. A stack is started only where the longest of its parts, among ``others``,
    has time too."""
    stop_s = starts.stop_s if running else 0.0
    if part.stack is None or part.stack == running:
        return part.seconds + stop_s <= left_s
    longest_s = max(p.seconds for p in [part, *others] if p.stack == part.stack)
    return stop_s + starts.of(started) + longest_s <= left_s
