"""What becomes of a worker's drafts, heartbeat by heartbeat. Pure."""

from coordinator.core.recent_counts import RecentCounts
from transport.wire.reports import DraftCounts

WINDOW_S = 10.0


class DraftMeter(RecentCounts[DraftCounts]):
    """Over the counts of one worker."""

    def __init__(self) -> None:
        super().__init__(WINDOW_S, _since, DraftCounts())

    @property
    def num_drafts(self) -> int:
        """Drafts that a step makes for each sequence now."""
        return self.newest.num_drafts

    @property
    def tokens_per_step(self) -> float | None:
        """Tokens that a step gave a sequence of late; None without steps."""
        recent = self.recent
        return 1 + sum(recent.accepted) / recent.num_steps if recent.num_steps else None

    @property
    def acceptance(self) -> tuple[float, ...]:
        """The share of drafts accepted of late, by position, as far as any were verified."""
        recent = self.recent
        counts = zip(recent.verified, recent.accepted, strict=True)
        return tuple(accepted / verified for verified, accepted in counts if verified)


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
