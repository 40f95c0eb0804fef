"""What a worker has counted of late, heartbeat by heartbeat. Pure."""

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class RecentCounts(Generic[T]):
    """The counts of one worker, which began when its process did: what came with the newest ones
    (``growth``), and what came in the last ``window_s``. The first counts are no growth: the worker
    may have served another coordinator before. ``since`` says what its second argument counts more
    than its first; before any counts all are ``none``. ``now`` is of any clock that does not go
    back."""

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
