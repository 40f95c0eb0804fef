"""The formulas from measured numbers to reported figures."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median


def percentile(values: Sequence[float], share: float) -> float:
    """Percentile by linear interpolation, as numpy's default; ``share`` in [0, 1]."""
    assert values, "a percentile of nothing"
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    low, high = ordered[math.floor(at)], ordered[math.ceil(at)]
    return low + (high - low) * (at - math.floor(at))


SHARES = (0.5, 0.9, 0.95, 0.99)
MS = 1000.0


def percentiles(values: Sequence[float], shares: Sequence[float] = SHARES) -> dict[str, float]:
    """Percentiles by name: ``p50`` for the share 0.5."""
    return {f"p{100 * share:g}": percentile(values, share) for share in shares}


def spread_ms(seconds: Sequence[float]) -> dict[str, float] | None:
    """Mean, percentiles and maximum in milliseconds; None without values."""
    if not seconds:
        return None
    found = {"mean": MS * fmean(seconds)}
    found |= {name: MS * value for name, value in percentiles(seconds).items()}
    return found | {"max": MS * max(seconds)}


def columns_ms(name: str, seconds: Sequence[float], figures: str) -> dict[str, float | None]:
    """Named figures of ``spread_ms`` with ``name`` before each; None without values.

    >>> columns_ms("itl", [0.001, 0.003], "p50 max")
    {'itl_p50_ms': 2.0, 'itl_max_ms': 3.0}
    """
    found = spread_ms(seconds) or {}
    return {f"{name}_{figure}_ms".lstrip("_"): found.get(figure) for figure in figures.split()}


def slope(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Slope of the least-squares line; 0 if all ``xs`` are the same."""
    x_mean, y_mean = fmean(xs), fmean(ys)
    spread = sum((x - x_mean) ** 2 for x in xs)
    if spread == 0:
        return 0.0
    return sum((x - x_mean) * (y - y_mean) for x, y in zip(xs, ys, strict=True)) / spread


@dataclass(frozen=True)
class Growth:
    """Growth of memory over a run, after the warm-up."""

    first_mib: float
    last_mib: float
    slope_mib_per_1000: float

    @property
    def mib(self) -> float:
        return self.last_mib - self.first_mib

    @property
    def share(self) -> float:
        return self.mib / self.first_mib


def growth(requests: Sequence[int], mib: Sequence[float], warm_up: int) -> Growth:
    """Growth by samples of memory after each number of ``requests``; both ends are medians of
    three."""
    pairs = [(n, size) for n, size in zip(requests, mib, strict=True) if n >= warm_up]
    xs, ys = [float(n) for n, _ in pairs], [size for _, size in pairs]
    return Growth(median(ys[:3]), median(ys[-3:]), 1000 * slope(xs, ys))


def longest_gap(at_s: Sequence[float], since: float) -> tuple[float, float]:
    """The longest gap between two of these times that ends after ``since``, in seconds, and its
    end."""
    pairs = itertools.pairwise(at_s)
    return max(((b - a, b) for a, b in pairs if b > since), default=(0.0, since))


def paired_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median of the ratios of each round: whatever slows a whole round cancels out."""
    return median(a / b for a, b in zip(ours, theirs, strict=True))


def outside_model_s(total_s: float, prefill_s: float, num_steps: int, step_s: float) -> float:
    """The time of a request without its prefill and its decode steps."""
    return total_s - prefill_s - num_steps * step_s
