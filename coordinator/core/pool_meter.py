"""What the pools have to do now, and how fast this node is, as pool_forecast.py asks. Pure.

Both come from the messages of the workers: no table of another node is needed. Until a first prompt
has been computed, the speed of prompts is 0, and the policy decides nothing.
"""

from collections.abc import Iterable

from coordinator.core.pool_forecast import PoolLoad
from coordinator.core.step_times import StepTimes
from coordinator.core.workers.prompt_meter import tok_s
from coordinator.core.workers.worker import Worker, are_pair

SHORTEST_S, NEWEST_ANSWER = 0.05, 0.05
ALIKE = 0.8
"""A step that workers compute together takes as long as the member with most sequences needs. So it
counts for that member, and for those with at least this share of its sequences."""


class Answers:
    """The answers of a node in the mean, the newest ones most. Before the first one ends they are
    taken to have some length."""

    def __init__(self) -> None:
        self.seconds, self.num_tokens = 4.0, 400.0

    def note(self, seconds: float, num_tokens: int) -> None:
        """Count an answer that took so long from its first token to its last."""
        self.seconds += NEWEST_ANSWER * (max(SHORTEST_S, seconds) - self.seconds)
        self.num_tokens += NEWEST_ANSWER * (num_tokens - self.num_tokens)


class PoolMeter:
    """Measures the workers and answers that it is shown: the ``Speeds`` of this node."""

    def __init__(self) -> None:
        self._steps = StepTimes()
        self._prompt_tok_s = 0.0
        self._answers = Answers()
        self._new_share, self._prompt_len = 1.0, 1_000.0
        self._waiting: int | None = None
        self._computed: dict[str, int] = {}

    def prefill_tok_s(self) -> float:
        return self._prompt_tok_s

    def step_s(self, num_sequences: int) -> float:
        return self._steps.seconds(num_sequences)

    def answer_s(self) -> float:
        return self._answers.seconds

    def answer_len(self) -> float:
        return self._answers.num_tokens

    def prompt_len(self) -> float:
        return self._prompt_len

    def note_answer(self, seconds: float, num_tokens: int) -> None:
        """Count an answer that took so long from its first token to its last."""
        self._answers.note(seconds, num_tokens)

    def new_tokens(self, num_tokens: int) -> int:
        """How many of a prompt's tokens are to be computed, as earlier prompts were."""
        return round(num_tokens * self._new_share)

    def load(self, workers: Iterable[Worker], num_tokens_queued: int) -> PoolLoad:
        """The load since the last call. ``num_tokens_queued``: tokens of prompts not placed yet.
        As many of them count as waiting as had to be computed of earlier prompts, by share."""
        present = list(workers)
        self._measure(present)
        ahead = sum(worker.load.tokens_ahead for worker in present)
        waiting = ahead + self.new_tokens(num_tokens_queued)
        computed = self._computed_since(present)
        arrived = computed + waiting - (waiting if self._waiting is None else self._waiting)
        self._waiting = waiting
        num_prefill = sum(worker.role == "prefill" for worker in present)
        return PoolLoad(
            num_prefill, len(present) - num_prefill, waiting, max(0, arrived),
            sum(worker.num_decoded for worker in present), are_pair(present),
        )  # fmt: skip

    def _measure(self, workers: list[Worker]) -> None:
        meters = [worker.prompts for worker in workers]
        self._prompt_tok_s = tok_s(meters) or self._prompt_tok_s
        if num_prompt := sum(meter.num_prompt for meter in meters):
            self._new_share = sum(meter.num_computed for meter in meters) / num_prompt
        if lengths := [meter.mean_len for meter in meters if meter.num_prompt]:
            self._prompt_len = sum(lengths) / len(lengths)
        most = max((worker.num_decoded for worker in workers), default=0)
        for worker in workers:
            least = ALIKE * most if worker.spread.shares_steps else 0.0
            for num_sequences, seconds in worker.steps.taken():
                if num_sequences >= least:
                    self._steps.note(num_sequences, seconds)

    def _computed_since(self, workers: list[Worker]) -> int:
        before = self._computed
        self._computed = {worker.instance: worker.num_prompt_tokens for worker in workers}
        return sum(n - before[name] for name, n in self._computed.items() if name in before)
