"""How long the decode steps of a node take, by the number of their sequences. Pure."""

from itertools import pairwise

NEWEST = 0.2
"""The weight of a new measurement of a step against the earlier ones of as many sequences."""
STEP_GROWTH = 0.4
"""Where no step was measured: with twice the sequences it takes 1.4 times as long. On an H200 it is
1.3 (64 to 128 sequences), on CPUs up to 2."""


class StepTimes:
    """Seconds a token and sequence, by the number of sequences, in powers of two."""

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
        known = sorted(self._by_bucket.values())
        if not known:
            return 0.0
        for (less, less_s), (more, more_s) in pairwise(known):
            if less <= num_sequences <= more:
                return less_s + (more_s - less_s) * (num_sequences - less) / max(more - less, 1e-9)
        rows, known_s = known[0] if num_sequences < known[0][0] else known[-1]
        return known_s * (1 + STEP_GROWTH * (num_sequences / rows - 1))
