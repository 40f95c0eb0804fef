"""How much of the prompts a worker found in its prefix cache, heartbeat by heartbeat. Pure."""

from collections import deque
from typing import Final

from msgspec import structs

from transport.wire.reports import PrefixCounts

WINDOW_S = 60.0
_HELD: Final = frozenset({
    "num_kept", "pages_kept", "num_kept_host", "host_bytes", "host_size_bytes",
})  # fmt: skip
"""These fields say what a worker holds now; the others count since its process began."""


class PrefixMeter:
    """Over the counts of one worker: what came with the newest ones (``growth``), and what came of
    late (``recent``); fields that do not count are the newest ones. The first counts are no growth:
    the worker may have served another coordinator before. ``now`` is of any clock that does not go
    back."""

    def __init__(self) -> None:
        self.growth = PrefixCounts()
        self._seen: deque[tuple[float, PrefixCounts]] = deque()

    def note(self, counts: PrefixCounts, now: float) -> None:
        seen = self._seen
        self.growth = _since(seen[-1][1] if seen else counts, counts)
        seen.append((now, counts))
        while len(seen) > 2 and seen[1][0] <= now - WINDOW_S:
            seen.popleft()

    @property
    def recent(self) -> PrefixCounts:
        """Of the last minute."""
        return _since(self._seen[0][1], self._seen[-1][1]) if self._seen else PrefixCounts()


def _since(before: PrefixCounts, after: PrefixCounts) -> PrefixCounts:
    """What ``after`` counts more; never less than nothing, whatever a worker says."""
    counted = {
        name: max(0, value - getattr(before, name))
        for name, value in structs.asdict(after).items()
        if name not in _HELD
    }
    return structs.replace(after, **counted)
