"""What a worker has done in spread groups, heartbeat by heartbeat. Pure."""

from coordinator.core.recent_counts import RecentCounts
from transport.wire.spread import ByWorker, SpreadCounts

WINDOW_S = 60.0


class SpreadMeter(RecentCounts[SpreadCounts]):
    """Over the counts of one worker."""

    def __init__(self) -> None:
        super().__init__(WINDOW_S, _since, SpreadCounts())


def _since(before: SpreadCounts, after: SpreadCounts) -> SpreadCounts:
    """What ``after`` counts more; never less than nothing, whatever a worker says."""
    return SpreadCounts(
        num_members=after.num_members,
        num_steps=max(0, after.num_steps - before.num_steps),
        num_aborted=max(0, after.num_aborted - before.num_aborted),
        wait_ms=max(0, after.wait_ms - before.wait_ms),
        late=_more(before.late, after.late),
        num_local=max(0, after.num_local - before.num_local),
        spread_ms=max(0, after.spread_ms - before.spread_ms),
        local_ms=max(0, after.local_ms - before.local_ms),
        waits_ms=_more(before.waits_ms, after.waits_ms),
    )


def _more(before: ByWorker, after: ByWorker) -> ByWorker:
    known = dict(before)
    return tuple((name, n - known.get(name, 0)) for name, n in after if n > known.get(name, 0))
