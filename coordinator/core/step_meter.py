"""How long the decode steps of a node take, by the tokens that its workers report. Pure."""

from dataclasses import dataclass
from itertools import pairwise

from coordinator.core.workers.worker import Worker

NEWEST = 0.2
"""The weight of a new measurement of a step against the earlier ones of as many sequences."""
STEPS_S = 1.0
"""Over how long the steps of a worker are measured."""
MOST_BESIDE = 0.5
"""Steps are not measured while prompts take a larger share of a decode worker's time."""
STEP_GROWTH = 0.4
"""Where no step was measured: with twice the sequences it takes 1.4 times as long. On an H200 it is
1.3 (64 to 128 sequences), on CPUs up to 2."""


class StepTimes:
    """Seconds a token and sequence, by the number of sequences, in powers of two."""

    def __init__(self) -> None:
        self._by_bucket: dict[int, tuple[float, float]] = {}

    def note(self, num_sequences: int, seconds: float) -> None:
        bucket = num_sequences.bit_length()
        rows, known_s = self._by_bucket.get(bucket, (float(num_sequences), seconds))
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


@dataclass
class StepMeter:
    """Measures the steps of one worker from ``since``: its sequences, summed over time, by the
    tokens that they get meanwhile."""

    since: float
    num_tokens_before: int
    num_prompt_before: int
    seen_at: float
    num_seen: int = 0
    """Sequences at the last look."""
    sequence_s: float = 0.0
    """Seconds that its sequences were decoded, all together."""

    @classmethod
    def of(cls, worker: Worker, now: float) -> "StepMeter":
        """A measurement that begins now."""
        return cls(now, worker.num_step_tokens, worker.num_prompt_tokens, now, worker.num_decoded)

    def look(self, worker: Worker, now: float) -> None:
        """Count the time since the last look."""
        number = worker.num_decoded
        self.sequence_s += (now - self.seen_at) * (self.num_seen + number) / 2
        self.seen_at, self.num_seen = now, number

    def step(self, worker: Worker, prefill_tok_s: float) -> tuple[int, float] | None:
        """Sequences and seconds of a step, both in the mean. None if there were none, or prompts
        took most of the time."""
        seconds = self.seen_at - self.since
        num_tokens = worker.num_step_tokens - self.num_tokens_before
        num_prompt = worker.num_prompt_tokens - self.num_prompt_before
        if num_tokens <= 0 or not (self.sequence_s and prefill_tok_s):
            return None
        beside = num_prompt / prefill_tok_s / seconds
        if beside > MOST_BESIDE:
            return None
        rows = max(1, round(self.sequence_s / seconds))
        return rows, (1 - beside) * self.sequence_s / num_tokens
