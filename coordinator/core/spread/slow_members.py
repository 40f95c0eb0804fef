"""Members of spread groups that the others wait for in vain too often. Pure.

Each wait in vain costs all members, and then they compute local steps for a while. A member that
goes on like this is better left out.
"""

from collections import deque
from collections.abc import Mapping, Set

MAX_LATE = 8
WITHIN_S = 60.0
OUT_S = 300.0
"""A member for which another one waited in vain so often within that time is left out for this."""


class SlowMembers:
    """Takes in how often each worker says that it waited for which other one."""

    def __init__(self) -> None:
        self._times: dict[tuple[str, str], deque[float]] = {}
        self._out_until: dict[str, float] = {}

    def note(self, reporter: str, late: Mapping[str, int], now: float) -> list[str]:
        """``late``: counts by member since the reporter's last heartbeat. Returns those that are
        left out from now on."""
        put_out = []
        for member, count in late.items():
            pair = reporter, member
            times = self._times.setdefault(pair, deque(maxlen=MAX_LATE))
            times.extend([now] * min(MAX_LATE, count))
            is_slow = len(times) == MAX_LATE and now - times[0] <= WITHIN_S
            if is_slow and not self.is_out(member, now):
                self.put_out(member, now)
                put_out.append(member)
                times.clear()
        return put_out

    def put_out(self, member: str, now: float) -> None:
        """Leave it out from now on."""
        self._out_until[member] = now + OUT_S

    def is_out(self, member: str, now: float) -> bool:
        return self.out_for_s(member, now) > 0

    def out_for_s(self, member: str, now: float) -> float:
        """How much longer it is left out."""
        return max(0.0, self._out_until.get(member, now) - now)

    def keep_only(self, instances: Set[str]) -> None:
        """All other workers are gone."""
        for gone in self._out_until.keys() - instances:
            del self._out_until[gone]
        for pair in [pair for pair in self._times if not set(pair) <= instances]:
            del self._times[pair]
