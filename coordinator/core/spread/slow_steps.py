"""Members of a spread group that cost the others more time than they save them. Pure.

Within a step each device waits for the others' rows and results. What is waited for all members
alike is the exchange; what is waited for one member beyond that is lost with it. What it gives is
its share of the experts: the workers tell how much longer a step would take with one member less,
by their table (decode/spread_table.py).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

FOR_S = 10.0
"""Other work may hold up a GPU for moments."""
LEAST_MS = 0.2
"""In a step; less is not worth a new generation."""
MORE_ROWS = 1.25
"""A member with so many times the sequences of any other one is later than they are for that."""


@dataclass(frozen=True)
class Shared:
    """What a member that decodes computed since its last heartbeat: ``num_steps`` spread steps,
    within which its device waited ``within_us`` for each other one; with one member less they would
    have taken ``saved_us`` longer. It has ``running`` sequences."""

    num_steps: int
    running: int
    within_us: Mapping[str, int]
    saved_us: int


class Cost(NamedTuple):
    """Of a member, ms in each step: what the others wait for it, beyond what they wait for the one
    that is waited for least, and what one member less would cost them."""

    member: str
    waited_ms: float
    saved_ms: float


class SlowSteps:
    """Takes in a group's counts with every heartbeat of one of its members."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def note(self, members: Mapping[str, Shared | None], now: float) -> list[Cost]:
        """By member, those that decode and lenders (None). Returns those that have cost more than
        they give for a while."""
        slow = []
        found = {cost.member: cost for cost in costs(members)}
        for member in members:
            cost = found.get(member)
            if cost is None or cost.waited_ms <= max(cost.saved_ms, LEAST_MS):
                self._since.pop(member, None)
            elif now - self._since.setdefault(member, now) >= FOR_S:
                del self._since[member]
                slow.append(cost)
        return slow

    def forget(self, members: Iterable[str]) -> None:
        """Their group has ended."""
        for member in members:
            self._since.pop(member, None)


def costs(members: Mapping[str, Shared | None]) -> list[Cost]:
    """Of those that can be compared: none, unless all that decode have computed spread steps."""
    decoding = {name: shared for name, shared in members.items() if shared is not None}
    if any(not shared.num_steps for shared in decoding.values()):
        return []
    waited: dict[str, float] = {}
    for member in members:
        by_others = [
            shared.within_us.get(member, 0) / 1e3 / shared.num_steps
            for name, shared in decoding.items()
            if name != member
        ]
        if by_others:
            waited[member] = sum(by_others) / len(by_others)
    least = min(waited.values(), default=0.0) if len(waited) > 1 else 0.0
    saved_ms = [shared.saved_us / 1e3 / shared.num_steps for shared in decoding.values()]
    return [
        Cost(member, ms - least, sum(saved_ms) / len(saved_ms))
        for member, ms in waited.items()
        if not _has_most(member, decoding)
    ]


def _has_most(member: str, decoding: Mapping[str, Shared]) -> bool:
    others = [shared.running for name, shared in decoding.items() if name != member]
    return member in decoding and decoding[member].running > MORE_ROWS * max(others, default=0) + 2
