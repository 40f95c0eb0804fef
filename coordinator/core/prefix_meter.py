"""How much of the prompts a worker found in its prefix cache, heartbeat by heartbeat. Pure."""

from typing import Final

from msgspec import structs

from coordinator.core.recent_counts import RecentCounts
from transport.wire.reports import PrefixCounts

WINDOW_S = 60.0
_HELD: Final = frozenset({
    "num_kept", "pages_kept", "num_kept_host", "host_bytes", "host_size_bytes",
})  # fmt: skip
"""These fields say what a worker holds now; the others count since its process began."""


class PrefixMeter(RecentCounts[PrefixCounts]):
    """Over the counts of one worker; fields that do not count are the newest ones."""

    def __init__(self) -> None:
        super().__init__(WINDOW_S, _since, PrefixCounts())


def _since(before: PrefixCounts, after: PrefixCounts) -> PrefixCounts:
    """What ``after`` counts more; never less than nothing, whatever a worker says."""
    counted = {
        name: max(0, value - getattr(before, name))
        for name, value in structs.asdict(after).items()
        if name not in _HELD
    }
    return structs.replace(after, **counted)
