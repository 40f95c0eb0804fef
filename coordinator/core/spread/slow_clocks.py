"""Members of a spread group whose GPUs run at a lower clock than the others'. Pure.

A step that workers compute together lasts as long as that of the slowest GPU, at worst in inverse
proportion to its clock. With one member less it lasts 1.2 to 1.34 times as long, by the figures
that steps of 64 sequences are to reach (estimates: spread steps were not measured on GPUs yet). So
a member that makes it longer than that costs more than it gives.
"""

from collections.abc import Iterable, Mapping
from statistics import median

SLOW = 0.75
"""Of the median clock of the others."""
FOR_S = 10.0
"""A GPU lowers its clock for moments, too."""


class SlowClocks:
    """Takes in the clocks of groups' members with every heartbeat of one of them."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def note(self, clocks: Mapping[str, float | None], now: float) -> list[str]:
        """``clocks`` in MHz, None of a member that computes no spread steps now or says nothing of
        its clock: then none is slow. Returns the members that have been slow for a while."""
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
        """Their group has ended: what was seen in it does not count in another one."""
        for member in members:
            self._since.pop(member, None)
