"""What the pools have to do now, and how fast this node is, as pool_policy.py asks. Pure.

Both come from the messages of the workers: no table of another node is needed. Until a first prompt
has been computed, the speed of prompts is 0, and the policy decides nothing.
"""

from collections.abc import Iterable
from itertools import pairwise

from coordinator.core.pool_policy import PoolLoad
from coordinator.core.pools import num_decoded
from coordinator.core.workers.worker import Worker

NEWEST = 0.2
"""The weight of a new measurement of a step against the earlier ones of as many sequences."""
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


class PoolMeter:
    """Measures the workers that it is shown."""

    def __init__(self) -> None:
        self._steps = StepTimes()
        self._prompt_tok_s = 0.0
        self._new_share = 1.0
        self._waiting: int | None = None
        self._computed: dict[str, int] = {}

    def prefill_tok_s(self) -> float:
        return self._prompt_tok_s

    def step_s(self, num_sequences: int) -> float:
        return self._steps.seconds(num_sequences)

    def load(self, workers: Iterable[Worker], num_tokens_queued: int, now: float) -> PoolLoad:
        """The load since the last call. ``num_tokens_queued``: tokens of prompts not placed yet.
        As many of them count as waiting as had to be computed of earlier prompts, by share."""
        present = list(workers)
        self._measure(present, now)
        ahead = sum(worker.load.tokens_ahead for worker in present)
        waiting = ahead + round(num_tokens_queued * self._new_share)
        computed = self._computed_since(present)
        arrived = computed + waiting - (waiting if self._waiting is None else self._waiting)
        self._waiting = waiting
        num_prefill = sum(worker.role == "prefill" for worker in present)
        return PoolLoad(
            num_prefill, len(present) - num_prefill, waiting, max(0, arrived),
            sum(map(num_decoded, present)),
        )  # fmt: skip

    def _measure(self, workers: list[Worker], now: float) -> None:
        meters = [worker.prompts for worker in workers]
        if busy_s := sum(meter.busy_s for meter in meters):
            num_computed = sum(meter.num_computed for meter in meters)
            self._prompt_tok_s = num_computed / busy_s
            self._new_share = num_computed / sum(meter.num_prompt for meter in meters)
        for worker in workers:
            tok_s, rows = worker.output_tokens.rate(now), num_decoded(worker)
            if worker.role == "decode" and rows and tok_s:
                self._steps.note(rows, rows / tok_s)

    def _computed_since(self, workers: list[Worker]) -> int:
        before = self._computed
        self._computed = {worker.instance: worker.num_prompt_tokens for worker in workers}
        return sum(n - before[name] for name, n in self._computed.items() if name in before)
