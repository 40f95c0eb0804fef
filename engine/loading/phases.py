"""Measures the phases of a start, for the log."""

import time
from collections.abc import Callable

SHOWN_S = 0.05


class Phases:
    """
    >>> phases = Phases(iter([0.0, 4.04, 4.05, 16.1]).__next__)
    >>> for name in ("weights", "cache", "graphs"):
    ...     phases.ended(name)
    >>> str(phases)
    '16.1 s: weights 4.0, graphs 12.1'
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._began = self._last = clock()
        self._took_s: dict[str, float] = {}

    def ended(self, phase: str) -> None:
        """Note that ``phase`` ends now, and the next phase begins."""
        now = self._clock()
        self._took_s[phase], self._last = now - self._last, now

    def __str__(self) -> str:
        long = {phase: took_s for phase, took_s in self._took_s.items() if took_s >= SHOWN_S}
        each = ", ".join(f"{phase} {took_s:.1f}" for phase, took_s in long.items())
        return f"{self._last - self._began:.1f} s: {each}"
