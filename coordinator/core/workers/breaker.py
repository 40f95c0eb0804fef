"""Circuit breakers: they keep requests away from a worker, or a pair of workers, with faults. Pure.

    closed      gets requests
    open        had ``num_faults`` faults within ``window_s``: gets no requests
    half-open   gets one request as a probe; the breaker closes if that is computed, and opens again
                if it fails

The pause before the next probe doubles with each failed probe, and each time the breaker opens
again within ``window_s`` of closing. After ``max_failed_probes`` of these in a row, further probes
are hopeless.
"""

from collections import deque
from collections.abc import Callable
from math import inf

from coordinator.core.contract import BreakerState
from coordinator.core.settings import BreakerSettings


class Breaker:
    """One breaker. ``now`` and ``placed_at`` are monotonic seconds.

    ``placed_at`` is when the request was placed that failed or was computed. A request that was
    placed before the breaker opened says nothing new. ``closed`` is only read by others.
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
        """True if so many probes failed in a row that another one is useless."""
        return self._num_failed_probes >= self._settings.max_failed_probes

    @property
    def pause_s(self) -> float:
        """Seconds from the last fault that opened the breaker to the next probe."""
        settings = self._settings
        return float(min(settings.pause_s * 2**self._num_failed_probes, settings.max_pause_s))

    def fault(
        self, now: float, placed_at: float, *, partner: str = "", num_partners: int = 0,
        may_open: bool = True,
    ) -> bool:  # fmt: skip
        """Count a failed request. Returns True if the breaker has opened now, for the first time or
        again.

        A fault shared with a ``partner`` may be the partner's. Requests that are computed take it
        back, and if there are two partners, only faults with two of them open the breaker.
        ``may_open`` is False for the last worker of its role.
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
        num_faults = self._num_faults(now, num_partners)  # forgets old ones, too
        if not may_open or num_faults < self._settings.num_faults:
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
        """Count a computed request. Returns True if the breaker has closed now."""
        self._shared.clear()
        if self.closed or placed_at <= self._opened_at:
            return False
        self.closed, self._closed_at = True, now
        self._own.clear()
        self._under_way = _never
        return True

    def takes_probe(self, now: float) -> bool:
        """True if the next request may be a probe."""
        return not self.closed and now >= self._probe_at and not self._under_way()

    def probe(self, under_way: Callable[[], bool]) -> None:
        """Note that a request was placed as the probe. ``under_way`` returns True while its outcome
        is open; a probe that ends without an outcome is followed by another."""
        self._under_way = under_way

    def _open(self, now: float, *, failed_probe: bool) -> None:
        self.closed = False
        self._num_failed_probes += failed_probe
        self._opened_at, self._probe_at = now, now + self.pause_s
        self._under_way = _never


class PairBreakers:
    """The breakers of pairs (exporter, puller) that have had a fault. A pair without a breaker
    works."""

    def __init__(self, settings: BreakerSettings) -> None:
        self._settings = settings
        self._breakers: dict[tuple[str, str], Breaker] = {}

    def get(self, exporter: str, puller: str) -> Breaker | None:
        return self._breakers.get((exporter, puller))

    def fault(self, exporter: str, puller: str, now: float, placed_at: float) -> None:
        """Count a failed request that the puller took over from the exporter."""
        breaker = self._breakers.setdefault((exporter, puller), Breaker(self._settings))
        breaker.fault(now, placed_at, partner=exporter, num_partners=1)

    def pulling_from(self, exporter: str, pullers: set[str], now: float) -> set[str]:
        """The pullers that may pull from ``exporter``: those whose pair has no open breaker or is
        due for a probe. All of them if none qualifies."""
        if not self._breakers:
            return pullers
        pairs = {puller: self._breakers.get((exporter, puller)) for puller in pullers}
        works = {p for p, b in pairs.items() if b is None or b.closed or b.takes_probe(now)}
        return works or pullers

    def forget(self, instance: str) -> None:
        """Remove the breakers of all pairs that include this worker."""
        self._breakers = {p: b for p, b in self._breakers.items() if instance not in p}


def _never() -> bool:
    return False
