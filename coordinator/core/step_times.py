"""How long the decode steps of a node take, by the number of their sequences. Pure."""

from itertools import pairwise

NEWEST = 0.2
"""The weight of a new measurement of a step against the earlier ones of as many sequences."""
STEP_GROWTH = 0.4
"""Where no step was measured: with twice the sequences it takes 1.4 times as long. On an H200 it is
1.3 (64 to 128 sequences), on CPUs up to 2."""


class StepTimes:
    """Seconds a token and sequence, by the number of sequences, in powers of two. Those of fewer
    sequences are at most what those of more give them: longer ones were beside prompts."""

    def __init__(self) -> None:
        self._by_bucket: dict[int, tuple[float, float]] = {}

    def note(self, num_sequences: float, seconds: float) -> None:
        bucket = round(num_sequences).bit_length()
        rows, known_s = self._by_bucket.get(bucket, (num_sequences, seconds))
        self._by_bucket[bucket] = (
            rows + NEWEST * (num_sequences - rows),
            known_s + NEWEST * (seconds - known_s),
        )

    def seconds(self, num_sequences: int) -> float:
        """Between the two nearest measurements; beyond them by STEP_GROWTH; 0 without any."""
        known = self._rising()
        if not known:
            return 0.0
        for (less, less_s), (more, more_s) in pairwise(known):
            if less <= num_sequences <= more:
                return less_s + (more_s - less_s) * (num_sequences - less) / max(more - less, 1e-9)
        return _grown(known[0] if num_sequences < known[0][0] else known[-1], num_sequences)

    def _rising(self) -> list[tuple[float, float]]:
        """The measurements by numbers of sequences, none longer than the next one gives it."""
        rising: list[tuple[float, float]] = []
        for rows, seconds in sorted(self._by_bucket.values(), reverse=True):
            most = _grown(rising[-1], rows) if rising else seconds
            rising.append((rows, min(seconds, most)))
        return rising[::-1]


def _grown(measured: tuple[float, float], num_sequences: float) -> float:
    """The time of a step by that of another one."""
    rows, seconds = measured
    return seconds * (1 + STEP_GROWTH * (num_sequences / rows - 1))
