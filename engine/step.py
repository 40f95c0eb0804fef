"""A launched batch: what the host waits for and reads."""

from collections.abc import Sequence
from dataclasses import dataclass

from engine import prompt_scores
from engine.batch import Sampled, StepResult
from engine.draws import Outcome
from engine.prompt_scores import Scores


@dataclass(frozen=True)
class Step:
    """One launched batch. The host knows nothing of its outcome before ``result``. ``draws`` and
    ``scores`` have for each pass the batch indices of its tokens' rows, and what those get."""

    num_rows: int
    draws: tuple[tuple[Sequence[int], Outcome], ...]
    scores: tuple[tuple[tuple[int, ...], Scores], ...] = ()

    def wait(self) -> None:
        """Return when the step is done, without reading its outcome."""
        for _, draw in self.draws:
            draw.wait()

    def result(self) -> StepResult:
        """Wait for the step and read it."""
        sampled: list[list[Sampled]] = [[] for _ in range(self.num_rows)]
        num_tokens = [0] * self.num_rows
        for indices, draw in self.draws:
            for index, outcome in zip(indices, draw.to_host(), strict=True):
                num_tokens[index] += 1
                if outcome is not None:
                    sampled[index].append(outcome)
        return StepResult(
            tuple(map(tuple, sampled)),
            prompt_scores.by_row(self.scores),
            tuple(max(0, num - 1) for num in num_tokens),
        )
