"""What a worker has done in spread groups, heartbeat by heartbeat. Pure."""

from coordinator.core.recent_counts import RecentCounts
from transport.wire.spread import SpreadCounts

WINDOW_S = 10.0


class SpreadMeter(RecentCounts[SpreadCounts]):
    """Over the counts of one worker."""

    def __init__(self) -> None:
        super().__init__(WINDOW_S, _since, SpreadCounts())


def _since(before: SpreadCounts, after: SpreadCounts) -> SpreadCounts:
    """What ``after`` counts more; never less than nothing, whatever a worker says."""
    known = dict(before.late)
    return SpreadCounts(
        after.num_members,
        max(0, after.num_steps - before.num_steps),
        max(0, after.num_aborted - before.num_aborted),
        max(0, after.wait_ms - before.wait_ms),
        tuple((m, n - known.get(m, 0)) for m, n in after.late if n > known.get(m, 0)),
    )
