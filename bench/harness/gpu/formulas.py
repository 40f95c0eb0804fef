"""The arithmetic of the GPU benchmark. Pure."""

from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean


def joules(at_s: Sequence[float], power_w: Sequence[float]) -> float:
    """Energy under a power curve, by the trapezoid rule; samples in order of time.

    >>> joules([0.0, 1.0, 3.0], [100.0, 200.0, 200.0])
    550.0
    """
    pairs = list(zip(at_s, power_w, strict=True))
    return sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in pairwise(pairs))


def per_second(
    spans: Sequence[tuple[float, float, int]], begin_s: float, end_s: float
) -> list[float]:
    """Tokens in each whole second from ``begin_s`` on. Each span of (begin, end, tokens) spreads
    its tokens evenly.

    >>> per_second([(0.0, 2.0, 10), (0.5, 1.0, 4)], 0.0, 2.0)
    [9.0, 5.0]
    """
    seconds = [0.0] * int(end_s - begin_s)
    for begin, end, tokens in spans:
        rate = tokens / max(end - begin, 1e-9)
        first = max(0, int(begin - begin_s))
        for second in range(first, min(len(seconds), int(end - begin_s) + 1)):
            lower = begin_s + second
            overlap = min(end, lower + 1) - max(begin, lower)
            seconds[second] += rate * max(0.0, overlap)
    return seconds


def drift(values: Sequence[float], window: int) -> float | None:
    """Relative change of the mean from the first ``window`` values to the last (-0.1: a tenth
    lower); None if the windows would overlap or the first mean is zero.

    >>> drift([10.0, 10.0, 9.0, 9.0], 2)
    -0.1
    """
    if window < 1 or len(values) < 2 * window:
        return None
    first, last = fmean(values[:window]), fmean(values[-window:])
    return None if first == 0 else (last - first) / first


def mean(values: Sequence[float | None]) -> float | None:
    """Mean of the values that are not None; None if all are."""
    offered = [value for value in values if value is not None]
    return fmean(offered) if offered else None


def highest(values: Sequence[float | None]) -> float | None:
    """Highest of the values that are not None; None if all are."""
    return max((value for value in values if value is not None), default=None)
