"""The service's load over the last hour, in periods of ten seconds. Pure.

Latencies are counted in bins that are 2 % wide, so a period's memory does not grow with its
requests, and a quantile is within 1 % of the exact one.
"""

import math
from collections import Counter, deque
from dataclasses import dataclass, field

from coordinator.core.contract import LoadPoint, LoadSeries

PERIOD_S = 10
NUM_PERIODS = 360
_BIN = math.log(1.02)
_LEAST_S = 1e-6
_DIGITS = 4


class Latencies:
    """Counted latencies of one period, in seconds."""

    def __init__(self) -> None:
        self._bins: Counter[int] = Counter()

    def add(self, seconds: float) -> None:
        self._bins[round(math.log(max(seconds, _LEAST_S)) / _BIN)] += 1

    def quantile(self, share: float) -> float | None:
        """The latency that ``share`` of the counted ones do not exceed; None without any."""
        rank = share * self._bins.total()
        below = 0
        for number in sorted(self._bins):
            below += self._bins[number]
            if below >= rank:
                return _rounded(math.exp(number * _BIN))
        return None


@dataclass
class _Period:
    """Counts of the current period. ``queued`` and ``running`` are its highest levels."""

    output_tokens: int = 0
    prompt_tokens: int = 0
    handoff_bytes: int = 0
    handoffs: int = 0
    queued: int = 0
    running: int = 0
    ttft: Latencies = field(default_factory=Latencies)
    tpot: Latencies = field(default_factory=Latencies)
    handoff: Latencies = field(default_factory=Latencies)

    def point(self) -> LoadPoint:
        return LoadPoint(
            output_tokens_per_s=self.output_tokens / PERIOD_S,
            prompt_tokens_per_s=self.prompt_tokens / PERIOD_S,
            ttft_p50_s=self.ttft.quantile(0.5),
            ttft_p99_s=self.ttft.quantile(0.99),
            tpot_p50_s=self.tpot.quantile(0.5),
            tpot_p99_s=self.tpot.quantile(0.99),
            queued=self.queued,
            running=self.running,
            handoffs_per_s=self.handoffs / PERIOD_S,
            handoff_p50_s=self.handoff.quantile(0.5),
            handoff_bytes_per_s=self.handoff_bytes / PERIOD_S,
        )


class LoadHistory:
    """The closed periods of the last hour and the counts of the current one. Each method takes
    ``now`` in Unix seconds by a clock that does not go back; the first ``now`` begins a period."""

    def __init__(self) -> None:
        self._points: deque[LoadPoint] = deque(maxlen=NUM_PERIODS)
        self._current = _Period()
        self._ends_at: float | None = None

    def first_token(self, now: float, ttft_s: float, num_prompt: int) -> None:
        """Count the first token of a request, whose prompt has ``num_prompt`` tokens."""
        period = self._at(now)
        period.output_tokens += 1
        period.prompt_tokens += num_prompt
        period.ttft.add(ttft_s)

    def next_token(self, now: float) -> None:
        self._at(now).output_tokens += 1

    def finished(self, now: float, tpot_s: float) -> None:
        """Count a request that finished with more than one token."""
        self._at(now).tpot.add(tpot_s)

    def handed_off(self, now: float, total_s: float, num_bytes: int) -> None:
        """Count a handoff: the time from the first token to the second, and the bytes copied."""
        period = self._at(now)
        period.handoffs += 1
        period.handoff_bytes += num_bytes
        period.handoff.add(total_s)

    def level(self, now: float, queued: int, running: int) -> None:
        """Note how many prompts wait, and how many requests are at workers, now."""
        period = self._at(now)
        period.queued = max(period.queued, queued)
        period.running = max(period.running, running)

    def series(self, now: float) -> LoadSeries:
        """The closed periods, the oldest first."""
        self._at(now)
        assert self._ends_at is not None, "set by _at"
        points = tuple(self._points)
        return LoadSeries(
            period_s=PERIOD_S,
            started_at=self._ends_at - PERIOD_S * (len(points) + 1),
            points=points,
        )

    def _at(self, now: float) -> _Period:
        """The current period, after closing the earlier ones."""
        if self._ends_at is None:
            self._ends_at = now + PERIOD_S
        if now < self._ends_at:
            return self._current
        num_over = int((now - self._ends_at) // PERIOD_S) + 1
        self._points.append(self._current.point())
        self._points.extend(_Period().point() for _ in range(min(num_over - 1, NUM_PERIODS)))
        self._ends_at += num_over * PERIOD_S
        self._current = _Period()
        return self._current


def _rounded(value: float) -> float:
    """The value with four significant digits."""
    return float(f"{value:.{_DIGITS}g}")
