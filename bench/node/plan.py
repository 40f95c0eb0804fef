"""What is measured on a node, and in which order. Pure.

A part needs a stack, which it shares with its neighbours, or makes its own. Parts run in the order
of the plan, the most important first, so that each stack is started once.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from bench.setups import Setup

Mode = Literal["plain", "spread", "drafts"]
Kind = Literal["doctor", "levels", "handoff", "interference", "crowd", "soak"]
MODES: tuple[Mode, ...] = ("plain", "spread", "drafts")
LIMIT_S: Mapping[Kind, float] = {
    "doctor": 240.0, "levels": 300.0, "handoff": 120.0, "interference": 160.0, "crowd": 250.0,
    "soak": 360.0,
}  # fmt: skip
"""The parts in the order in which they run, and the seconds after which each is given up."""
KINDS: tuple[Kind, ...] = tuple(LIMIT_S)
OF_MODE: Mapping[Mode, Collection[Kind]] = {
    "plain": KINDS,
    "spread": ("levels", "crowd"),
    "drafts": ("levels", "handoff"),
}
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
    """One measurement, with its own result file."""

    kind: Kind
    served: Served

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
    def limit_s(self) -> float:
        return LIMIT_S[self.kind]


def wanted(setups: Sequence[Setup], modes: Collection[Mode], kinds: Collection[Kind]) -> list[Part]:
    """The parts of these kinds, in the order of the plan."""
    served = [
        Served(setup, mode)
        for mode in MODES
        for setup in setups
        if mode in modes and (mode != "spread" or setup.num_decode > 1)
    ]
    return [
        Part(kind, each)
        for each in served
        for kind in KINDS
        if kind in kinds and _belongs(kind, each, served)
    ]


def _belongs(kind: Kind, served: Served, among: Sequence[Served]) -> bool:
    if kind == "doctor":
        return served == among[0]
    if kind not in OF_MODE[served.mode]:
        return False
    if kind == "soak":  # of handoffs: once is enough
        return served == _first_split(among)
    return kind != "handoff" or served.setup.num_prefill > 0


def _first_split(among: Iterable[Served]) -> Served | None:
    return next((each for each in among if each.setup.num_prefill), None)
