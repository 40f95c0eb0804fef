"""Meters of a worker's recent work, by its messages: tokens, drafts, prefixes, spread steps.

Pure. ``now`` may be of any clock that does not go back.
"""

from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from msgspec import structs

from transport.wire.reports import DraftCounts, PrefixCounts
from transport.wire.spread import ByWorker, SpreadCounts

T = TypeVar("T")

TOKENS_WINDOW_S = 5
DRAFTS_WINDOW_S = 10.0
PREFIXES_WINDOW_S = 60.0
SPREAD_WINDOW_S = 60.0
_HELD: Final = frozenset({
    "num_kept", "pages_kept", "num_kept_host", "host_bytes", "host_size_bytes",
})  # fmt: skip
"""Fields of PrefixCounts that say what a worker holds now; the others count since it started."""


class TokenMeter:
    """Tokens per second that a worker computed over the last ``TOKENS_WINDOW_S``, counted by whole
    seconds."""

    def __init__(self) -> None:
        self._seconds = [-1] * (TOKENS_WINDOW_S + 1)
        self._counts = [0] * (TOKENS_WINDOW_S + 1)

    def add(self, num_tokens: int, now: float) -> None:
        second = int(now)
        place = second % (TOKENS_WINDOW_S + 1)
        if self._seconds[place] != second:
            self._seconds[place], self._counts[place] = second, 0
        self._counts[place] += num_tokens

    def rate(self, now: float) -> float:
        """Tokens per second over the last whole seconds; the current second does not count yet."""
        since, until = int(now) - TOKENS_WINDOW_S, int(now)
        counted = zip(self._seconds, self._counts, strict=True)
        return sum(n for at, n in counted if since <= at < until) / TOKENS_WINDOW_S


class RecentCounts(Generic[T]):
    """Recent growth of the counts in a worker's heartbeats, which begin with its process.

    ``growth`` is what the newest heartbeat added, ``recent`` what the last ``window_s`` added. The
    first counts are no growth: the worker may have served another coordinator before. ``since``
    subtracts its first argument from its second, with no count below 0. Before any heartbeat, all
    counts are ``none``."""

    def __init__(self, window_s: float, since: Callable[[T, T], T], none: T) -> None:
        self._window_s = window_s
        self._since = since
        self._seen: deque[tuple[float, T]] = deque()
        self.growth = self.newest = none

    def note(self, counts: T, now: float) -> None:
        seen = self._seen
        self.growth = self._since(self.newest if seen else counts, counts)
        self.newest = counts
        seen.append((now, counts))
        while len(seen) > 2 and seen[1][0] <= now - self._window_s:
            seen.popleft()

    @property
    def recent(self) -> T:
        return self._since(self._seen[0][1], self.newest) if self._seen else self.newest


class DraftMeter(RecentCounts[DraftCounts]):
    """Counts a worker's drafts, verified and accepted."""

    def __init__(self) -> None:
        super().__init__(DRAFTS_WINDOW_S, _drafts_since, DraftCounts())

    @property
    def num_drafts(self) -> int:
        """Drafts that a step makes for each sequence now."""
        return self.newest.num_drafts

    @property
    def tokens_per_step(self) -> float | None:
        """Recent tokens per step and sequence; None without steps."""
        recent = self.recent
        return 1 + sum(recent.accepted) / recent.num_steps if recent.num_steps else None

    @property
    def acceptance(self) -> tuple[float, ...]:
        """The recent share of accepted drafts, by position, where any were verified."""
        recent = self.recent
        counts = zip(recent.verified, recent.accepted, strict=True)
        return tuple(accepted / verified for verified, accepted in counts if verified)


class PrefixMeter(RecentCounts[PrefixCounts]):
    """Counts prompt tokens that a worker looked up and found in its prefix cache."""

    def __init__(self) -> None:
        super().__init__(PREFIXES_WINDOW_S, _prefixes_since, PrefixCounts())


class SpreadMeter(RecentCounts[SpreadCounts]):
    """Counts a worker's steps and waits in spread groups."""

    def __init__(self) -> None:
        super().__init__(SPREAD_WINDOW_S, _spread_since, SpreadCounts())

    @property
    def shares_steps(self) -> bool:
        """True if it has taken spread steps lately."""
        return self.recent.num_steps > 0

    @property
    def has_lenders(self) -> bool:
        """True if most steps that the newest heartbeat added were spread over more than two
        members: prefill workers are lenders of such a group."""
        return self.growth.num_members > 2 and self._spreads_most

    @property
    def in_pair(self) -> bool:
        """True if it is one of two members that have taken spread steps lately. Both decode
        whatever their roles are. Prompts keep them from such steps, so there may be few."""
        return self.growth.num_members == 2 and self.shares_steps

    @property
    def spreads_in_pair(self) -> bool:
        """True if it is in a pair, and most steps that the newest heartbeat added were spread."""
        return self.in_pair and self._spreads_most

    @property
    def _spreads_most(self) -> bool:
        return self.growth.num_steps > self.growth.num_local


def _drafts_since(before: DraftCounts, after: DraftCounts) -> DraftCounts:
    return DraftCounts(
        max(0, after.num_steps - before.num_steps),
        _more(before.verified, after.verified),
        _more(before.accepted, after.accepted),
        after.num_drafts,
    )


def _more(before: tuple[int, ...], after: tuple[int, ...]) -> tuple[int, ...]:
    earlier = (*before, *[0] * len(after))
    return tuple(max(0, new - old) for new, old in zip(after, earlier, strict=False))


def _prefixes_since(before: PrefixCounts, after: PrefixCounts) -> PrefixCounts:
    counted = {
        name: max(0, value - getattr(before, name))
        for name, value in structs.asdict(after).items()
        if name not in _HELD
    }
    return structs.replace(after, **counted)


def _spread_since(before: SpreadCounts, after: SpreadCounts) -> SpreadCounts:
    return SpreadCounts(
        num_members=after.num_members,
        num_steps=max(0, after.num_steps - before.num_steps),
        num_aborted=max(0, after.num_aborted - before.num_aborted),
        wait_ms=max(0, after.wait_ms - before.wait_ms),
        late=_more_by_worker(before.late, after.late),
        num_local=max(0, after.num_local - before.num_local),
        spread_ms=max(0, after.spread_ms - before.spread_ms),
        local_ms=max(0, after.local_ms - before.local_ms),
        waits_ms=_more_by_worker(before.waits_ms, after.waits_ms),
        within_us=_more_by_worker(before.within_us, after.within_us),
        saved_us=max(0, after.saved_us - before.saved_us),
        table=after.table,
    )


def _more_by_worker(before: ByWorker, after: ByWorker) -> ByWorker:
    known = dict(before)
    return tuple((name, n - known.get(name, 0)) for name, n in after if n > known.get(name, 0))
