"""A circuit breaker: whether a worker, or a pair of workers, gets requests after its faults. Pure.

    closed      gets requests
    open        had ``num_faults`` faults within ``window_s``: gets none
    half-open   gets one request as a probe; if that is computed the breaker closes, if it fails
                the breaker opens again

The pause before the next probe doubles with each probe that failed, and with each time the breaker
opens again within ``window_s`` of closing. After ``max_failed_probes`` of these in a row the worker
is of no use.
"""

from collections import deque
from collections.abc import Callable
from math import inf

from coordinator.core.contract import BreakerState
from coordinator.core.settings import BreakerSettings


class Breaker:
    """One breaker; ``now`` and ``placed_at`` are monotonic seconds.

    ``placed_at`` is when the request was placed that failed or was computed. What was placed before
    the breaker opened says nothing new. ``closed`` is for others to read only.
    """

    def __init__(self, settings: BreakerSettings) -> None:
        self._settings = settings
        self._own: deque[float] = deque()
        self._shared: deque[tuple[float, str]] = deque()
        self._opened_at = -inf
        self._closed_at = -inf
        self._probe_at = -inf
        self._num_failed_probes = 0
        self.closed = True
        self._under_way: Callable[[], bool] = _never

    @property
    def state(self) -> BreakerState:
        if self.closed:
            return "closed"
        return "half-open" if self._under_way() else "open"

    @property
    def hopeless(self) -> bool:
        """Whether so many probes failed in a row that another one is of no use."""
        return self._num_failed_probes >= self._settings.max_failed_probes

    @property
    def pause_s(self) -> float:
        """From the last fault that opened it to the next probe."""
        settings = self._settings
        return float(min(settings.pause_s * 2**self._num_failed_probes, settings.max_pause_s))

    def fault(
        self, now: float, placed_at: float, *, partner: str = "", num_partners: int = 0,
        may_open: bool = True,
    ) -> bool:  # fmt: skip
        """A request failed; returns whether the breaker has opened now, anew or again.

        A fault shared with a ``partner`` may be the partner's: requests that are computed take it
        back, and it takes faults with two of the ``num_partners``, if there are two, to open.
        ``may_open`` is False for the last worker of its kind.
        """
        if not self.closed:
            if placed_at <= self._opened_at:
                return False
            self._open(now, failed_probe=True)
            return True
        if partner:
            self._shared.append((now, partner))
        else:
            self._own.append(now)
        if not may_open or self._num_faults(now, num_partners) < self._settings.num_faults:
            return False
        relapsed = now - self._closed_at <= self._settings.window_s
        if not relapsed:
            self._num_failed_probes = 0
        self._open(now, failed_probe=relapsed)
        return True

    def _num_faults(self, now: float, num_partners: int) -> int:
        since = now - self._settings.window_s
        while self._own and self._own[0] < since:
            self._own.popleft()
        while self._shared and self._shared[0][0] < since:
            self._shared.popleft()
        partners = {partner for _, partner in self._shared}
        shared = len(self._shared) if len(partners) >= min(2, num_partners) else 0
        return len(self._own) + shared

    def worked(self, now: float, placed_at: float) -> bool:
        """A request was computed; returns whether the breaker has closed now."""
        self._shared.clear()
        if self.closed or placed_at <= self._opened_at:
            return False
        self.closed, self._closed_at = True, now
        self._own.clear()
        self._under_way = _never
        return True

    def takes_probe(self, now: float) -> bool:
        """Whether the next request may probe."""
        return not self.closed and now >= self._probe_at and not self._under_way()

    def probe(self, under_way: Callable[[], bool]) -> None:
        """A request was placed as the probe; ``under_way`` says whether it has yet to show
        anything. One that ends without showing anything is followed by another."""
        self._under_way = under_way

    def _open(self, now: float, *, failed_probe: bool) -> None:
        self.closed = False
        self._num_failed_probes += failed_probe
        self._opened_at, self._probe_at = now, now + self.pause_s
        self._under_way = _never


class PairBreakers:
    """The breakers of pairs (exporter, puller) that have had a fault. Without a breaker a pair
    works."""

    def __init__(self, settings: BreakerSettings) -> None:
        self._settings = settings
        self._breakers: dict[tuple[str, str], Breaker] = {}

    def get(self, exporter: str, puller: str) -> Breaker | None:
        return self._breakers.get((exporter, puller))

    def fault(self, exporter: str, puller: str, now: float, placed_at: float) -> None:
        """A request failed that the puller took over from the exporter."""
        breaker = self._breakers.setdefault((exporter, puller), Breaker(self._settings))
        breaker.fault(now, placed_at, partner=exporter, num_partners=1)

    def pulling_from(self, exporter: str, pullers: set[str], now: float) -> set[str]:
        """Of pullers, those with which that works or which may probe it; all if there is none."""
        if not self._breakers:
            return pullers
        pairs = {puller: self._breakers.get((exporter, puller)) for puller in pullers}
        works = {p for p, b in pairs.items() if b is None or b.closed or b.takes_probe(now)}
        return works or pullers

    def forget(self, instance: str) -> None:
        """A worker on either side is gone."""
        self._breakers = {p: b for p, b in self._breakers.items() if instance not in p}


def _never() -> bool:
    return False
