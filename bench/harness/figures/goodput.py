"""Goodput: the highest request rate at which enough requests meet both latency targets.

The search knows nothing of servers: it yields a rate and is sent its attainment. Rates double
from the first until one misses the share (or halve until one meets it). Then the gap is bisected
until it is within ``tolerance`` of its upper end, or the trials are used up. The result is the
highest rate that was itself tried and met the share, never a rate between trials.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass

from bench.harness.figures.outcome import Outcome


@dataclass(frozen=True)
class Slo:
    """Latency targets in seconds, and the share of requests that must meet both."""

    ttft_s: float
    tpot_s: float

    def __post_init__(self) -> None:
        for name in ("ttft_s", "tpot_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}: {getattr(self, name)} is not above 0")

    def met(self, outcome: Outcome) -> bool:
        """True if the request met both targets. An answer of one token has no TPOT to miss."""
        ttft, tpot = outcome.record.ttft_s, outcome.tpot_s
        if not outcome.ok or ttft is None or ttft > self.ttft_s:
            return False
        return tpot is None or tpot <= self.tpot_s


def attainment(outcomes: Sequence[Outcome], slo: Slo) -> float:
    """The share of all requests, failed ones included, that met ``slo``."""
    assert outcomes, "the attainment of no requests"
    return sum(slo.met(outcome) for outcome in outcomes) / len(outcomes)


@dataclass(frozen=True)
class Bounds:
    """``met``: the goodput, the highest rate that met the share (None: none did). ``missed``: the
    lowest that missed it (None: none did, so the goodput is at least ``met``)."""

    met: float | None
    missed: float | None

    def tightened(self, attained: Mapping[float, float], share: float) -> "Bounds":
        """Bounds narrowed by all rates that were tried, also those tried for another share."""
        above = [r for r in attained if self.met is None or r > self.met]
        missed = min((r for r in above if attained[r] < share), default=None)
        below = [r for r in attained if missed is None or r < missed]
        return Bounds(max((r for r in below if attained[r] >= share), default=None), missed)


def search(
    first: float, share: float, *, tolerance: float = 0.1, max_trials: int = 12
) -> Generator[float, float, Bounds]:
    """Yield rates to try; the caller sends the attainment of each."""
    met: float | None = None
    missed: float | None = None
    for _ in range(max_trials):
        if met is None:
            rate = first if missed is None else missed / 2
        elif missed is None:
            rate = met * 2
        elif missed - met <= tolerance * missed:
            break
        else:
            rate = (met + missed) / 2
        if (yield rate) >= share:
            met = rate
        else:
            missed = rate
    return Bounds(met, missed)
