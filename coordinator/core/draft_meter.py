"""What becomes of a worker's drafts, heartbeat by heartbeat. Pure."""

from collections import deque

from transport.wire.reports import DraftCounts

WINDOW_S = 10.0


class DraftMeter:
    """Over the counts of one worker, which began when its process did: what came with the newest
    ones (``growth``), and what came of late. The first counts are no growth: the worker may have
    served another coordinator before. ``now`` is of any clock that does not go back."""

    def __init__(self) -> None:
        self.growth = DraftCounts()
        self._seen: deque[tuple[float, DraftCounts]] = deque()

    def note(self, counts: DraftCounts, now: float) -> None:
        seen = self._seen
        self.growth = _since(seen[-1][1], counts) if seen else _since(counts, counts)
        seen.append((now, counts))
        while len(seen) > 2 and seen[1][0] <= now - WINDOW_S:
            seen.popleft()

    @property
    def num_drafts(self) -> int:
        """Drafts that a step makes for each sequence now."""
        return self._seen[-1][1].num_drafts if self._seen else 0

    @property
    def tokens_per_step(self) -> float | None:
        """Tokens that a step gave a sequence of late; None without steps."""
        recent = self._recent()
        return 1 + sum(recent.accepted) / recent.num_steps if recent.num_steps else None

    @property
    def acceptance(self) -> tuple[float, ...]:
        """The share of drafts accepted of late, by position, as far as any were verified."""
        recent = self._recent()
        counts = zip(recent.verified, recent.accepted, strict=True)
        return tuple(accepted / verified for verified, accepted in counts if verified)

    def _recent(self) -> DraftCounts:
        return _since(self._seen[0][1], self._seen[-1][1]) if self._seen else DraftCounts()


def _since(before: DraftCounts, after: DraftCounts) -> DraftCounts:
    """What ``after`` counts more; never less than nothing, whatever a worker says."""
    return DraftCounts(
        max(0, after.num_steps - before.num_steps),
        _more(before.verified, after.verified),
        _more(before.accepted, after.accepted),
        after.num_drafts,
    )


def _more(before: tuple[int, ...], after: tuple[int, ...]) -> tuple[int, ...]:
    earlier = (*before, *[0] * len(after))
    return tuple(max(0, new - old) for new, old in zip(after, earlier, strict=False))
