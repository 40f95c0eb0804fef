"""A launched batch, whose sampled tokens stay on the device until the host reads them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from engine.batch import Sampled, StepResult, TokenLogprobs
from engine.sampling import prompt_scores
from engine.sampling.prompt_scores import Scores
from engine.timer import Timer


@dataclass(frozen=True)
class SampleRow:
    """One sampled row, on the host. ``position``: the index that its new token will have.
    ``place``: the number of drafts before it in this step."""

    state_slot: int
    position: int
    place: int = 0


@dataclass(frozen=True)
class Draw:
    """Sampled rows still on the device: ``ids`` int64 [rows], -1 where logits were not finite.

    ``logprobs`` of the rows ``logprob_rows``: chosen [n], best values and ids [n, k]. ``errors``:
    rows whose grammar cannot go on, and why.
    """

    ids: torch.Tensor
    logprob_rows: tuple[tuple[int, int], ...] = ()
    logprobs: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None
    errors: Mapping[int, str] = field(default_factory=dict)

    @property
    def device_ids(self) -> torch.Tensor:
        """``ids`` on the device, for the next pass."""
        return self.ids

    @property
    def host_ids(self) -> torch.Tensor:
        """``ids`` on the host, valid after ``wait``."""
        return self.ids

    @property
    def is_known(self) -> bool:
        """Whether ``wait`` does not wait."""
        return True

    def wait(self) -> None:
        """Wait until the ids are on the host; on the CPU they already are."""

    def output(self, row: int) -> Sequence[int]:
        """The tokens of the row's sequence, after ``wait``; -1 where logits were not finite."""
        return (int(self.host_ids[row]),)

    def to_host(self) -> list[Sampled]:
        """One entry per row; waits for the device."""
        ids = self.ids.tolist()
        found: dict[int, TokenLogprobs] = {}
        if self.logprobs is not None:
            chosen, values, best = (tensor.tolist() for tensor in self.logprobs)
            for i, (row, k) in enumerate(self.logprob_rows):
                top = tuple(zip(best[i][:k], values[i][:k], strict=True))
                found[row] = TokenLogprobs(chosen[i], top)
        return [
            Sampled(token_id, found.get(row))
            if token_id >= 0 and row not in self.errors
            else Sampled(None, error=self.errors.get(row, ""))
            for row, token_id in enumerate(ids)
        ]


class Outcome(Protocol):
    """The result of a pass for the host: a ``Draw``, or tokens verified with drafts."""

    @property
    def is_known(self) -> bool: ...

    def wait(self) -> None: ...

    def to_host(self) -> Sequence[Sampled | None]:
        """One entry per token, None for tokens behind a rejected draft; waits for the device."""
        ...


@dataclass(frozen=True)
class Step:
    """One launched batch, whose results the host only knows after ``result``. ``draws`` and
    ``scores`` have the results of each pass, with the batch indices of its tokens' rows. A batch
    without draws is done when the device has computed it, as its ``timer`` says."""

    num_rows: int
    draws: tuple[tuple[Sequence[int], Outcome], ...]
    timer: Timer
    scores: tuple[tuple[tuple[int, ...], Scores], ...] = ()

    @property
    def took_s(self) -> float | None:
        """How long the device computed it; None if it still does, but for the results."""
        return self.timer.took_s

    @property
    def num_multiprocessors(self) -> int:
        """How many multiprocessors computed it: of the whole GPU or of its part (overlap.py)."""
        return self.timer.num_multiprocessors

    @property
    def is_done(self) -> bool:
        """Whether ``result`` does not wait."""
        return all(draw.is_known for _, draw in self.draws) if self.draws else self.timer.is_over

    def wait(self) -> None:
        """Wait until the step is done, without reading its results."""
        if not self.draws:
            self.timer.wait()
        for _, draw in self.draws:
            draw.wait()

    def result(self) -> StepResult:
        """Wait for the step, and read its results."""
        if not self.draws:
            self.timer.wait()
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
