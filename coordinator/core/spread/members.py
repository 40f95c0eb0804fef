"""Members of spread groups that slow the others down, and the status of a member. Pure.

A step that workers compute together lasts as long as that of the slowest member. Three judges find
members that are better left out for a while:

``SlowMembers``: the others wait for the member in vain too often. Each such wait costs all members,
and then they compute local steps for a while.

``SlowClocks``: the clock of its GPU is lower than the others'. At worst a step lasts longer in
inverse proportion to the clock. With one member less it lasts 1.2 to 1.34 times as long (estimated
for steps of 64 sequences).

``SlowSteps``: the member costs the others more time than it saves them. Within a step each device
waits for the others' rows and results. The shortest of these waits is the exchange; what the others
wait for one member beyond that is lost with it. What a member gives is its share of the experts:
the workers report how much longer a step would take with one member less, by their table
(decode/spread_table.py).
"""

from collections import deque
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from coordinator.core.contract import SpreadMode, SpreadStatus
from coordinator.core.workers.meters import SpreadMeter

MAX_LATE = 8
WITHIN_S = 15.0
FIRST_OUT_S, MOST_OUT_S = 30.0, 300.0
"""A member for which another one waited in vain ``MAX_LATE`` times within ``WITHIN_S`` is left out
for ``FIRST_OUT_S``, and twice as long after each further time, up to ``MOST_OUT_S``. So often it
happens only if hardly any step succeeds in between: the other one keeps away longer after each
further time (decode/lateness.py)."""
SLOW = 0.75
"""The lowest clock that is not slow, as a share of the median clock of the other members."""
FOR_S = 10.0
"""A member is left out if it is slow for this long: GPUs lower their clocks for moments too, and
other work may hold up a GPU for moments."""
LEAST_MS = 0.2
"""A smaller loss per step is not worth a new generation."""
MORE_ROWS = 1.25
"""A member with so many times the sequences of any other member is later because of them."""


class SlowMembers:
    """Finds members for which others wait in vain too often. Remembers which are left out."""

    def __init__(self) -> None:
        self._times: dict[tuple[str, str], deque[float]] = {}
        self._out_until: dict[str, float] = {}
        self._next_s: dict[str, float] = {}

    def note(self, reporter: str, late: Mapping[str, int], now: float) -> list[str]:
        """Store how often the reporter waited in vain for each member since its last heartbeat.
        Returns the members that are left out from now on."""
        left_out = []
        for member, count in late.items():
            pair = reporter, member
            times = self._times.setdefault(pair, deque(maxlen=MAX_LATE))
            times.extend([now] * min(MAX_LATE, count))
            is_slow = len(times) == MAX_LATE and now - times[0] <= WITHIN_S
            if is_slow and not self.is_out(member, now):
                self.leave_out(member, now)
                left_out.append(member)
                times.clear()
        return left_out

    def leave_out(self, member: str, now: float) -> None:
        """Leave a member out of groups from now on."""
        seconds = self._next_s.get(member, FIRST_OUT_S)
        self._out_until[member] = now + seconds
        self._next_s[member] = min(2 * seconds, MOST_OUT_S)

    def is_out(self, member: str, now: float) -> bool:
        return self.out_for_s(member, now) > 0

    def out_for_s(self, member: str, now: float) -> float:
        """Seconds for which the member is still left out."""
        return max(0.0, self._out_until.get(member, now) - now)

    def forget(self, member: str) -> None:
        """Leave a member out no longer, and forget how often others waited for it."""
        self._out_until.pop(member, None)
        self._next_s.pop(member, None)
        for pair in [pair for pair in self._times if pair[1] == member]:
            del self._times[pair]

    def keep_only(self, instances: Set[str]) -> None:
        """Forget all other workers: they are gone."""
        for known in (self._out_until, self._next_s):
            for gone in known.keys() - instances:
                del known[gone]
        for pair in [pair for pair in self._times if not set(pair) <= instances]:
            del self._times[pair]


class SlowClocks:
    """Finds members whose GPUs run at a lower clock than the others'."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def note(self, clocks: Mapping[str, float | None], now: float) -> list[str]:
        """Compare the clocks of a group, in MHz, at a heartbeat of one of its members. None for a
        member that computes no spread steps now or does not report its clock: then no member is
        slow. Returns the members that have been slow for ``FOR_S``."""
        known = {member: mhz for member, mhz in clocks.items() if mhz is not None}
        slow = []
        for member in clocks:
            others = [mhz for other, mhz in known.items() if other != member]
            if len(known) < len(clocks) or not others or known[member] >= SLOW * median(others):
                self._since.pop(member, None)
            elif now - self._since.setdefault(member, now) >= FOR_S:
                del self._since[member]
                slow.append(member)
        return slow

    def forget(self, members: Iterable[str]) -> None:
        """Forget the members of a group that has ended: they are judged afresh in another group."""
        for member in members:
            self._since.pop(member, None)


@dataclass(frozen=True)
class Shared:
    """What a decoding member computed together with others since its last heartbeat."""

    num_steps: int
    running: int
    """Number of its sequences."""
    within_us: Mapping[str, int]
    """By other member: how long its device waited for that member within the steps."""
    saved_us: int
    """How much longer the steps would have taken with one member less."""


class Cost(NamedTuple):
    """Cost and benefit of one member of a spread group, in ms per step."""

    member: str
    waited_ms: float
    """How long the others wait for it, minus the shortest wait for any member."""
    saved_ms: float
    """How much longer their steps would be without it."""


class SlowSteps:
    """Finds members that cost the others more time than they save them."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def note(self, members: Mapping[str, Shared | None], now: float) -> list[Cost]:
        """Compare the members of a group at a heartbeat of one of them; lenders have None. Returns
        the members that have cost more than they save for ``FOR_S``."""
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
        """Forget the members of a group that has ended."""
        for member in members:
            self._since.pop(member, None)


def costs(members: Mapping[str, Shared | None]) -> list[Cost]:
    """Costs of the members that can be compared: none, unless all decoding members have computed
    spread steps."""
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


def spread_status(meter: SpreadMeter, members: tuple[str, ...], left_out_s: float) -> SpreadStatus:
    """The status of a worker with the counts ``meter``. ``members`` are those of its group; it is
    left out of all groups for ``left_out_s`` seconds."""
    recent = meter.recent
    num_steps, num_local = recent.num_steps, recent.num_local
    mode: SpreadMode = "spread" if meter.growth.num_steps else "local"
    if not members:
        mode = "left out" if left_out_s > 0 else "alone"
    return SpreadStatus(
        mode=mode,
        members=members,
        share=num_steps / (num_steps + num_local) if num_steps + num_local else None,
        step_ms=recent.spread_ms / num_steps if num_steps else None,
        local_step_ms=recent.local_ms / num_local if num_local else None,
        aborted=recent.num_aborted,
        wait_ms={name: ms / num_steps for name, ms in recent.waits_ms} if num_steps else {},
        within_ms={n: us / 1e3 / num_steps for n, us in recent.within_us} if num_steps else {},
        saved_ms=recent.saved_us / 1e3 / num_steps if num_steps else None,
        late=dict(recent.late),
        left_out_s=left_out_s,
        table=recent.table,
    )
