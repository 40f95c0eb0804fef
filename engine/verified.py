"""What the host gets of a decode step with drafts."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.batch import Sampled
from engine.step import Draw


@dataclass(frozen=True)
class Verified:
    """The tokens of a step. ``counts``: of each row the tokens that were sampled; ``num_out``, on
    the host, how many of them are output."""

    draw: Draw
    counts: Sequence[int]
    num_out: torch.Tensor

    def wait(self) -> None:
        """Return when ``num_out`` is on the host."""
        self.draw.wait()

    def output(self, row: int) -> Sequence[int]:
        """What the row's sequence has got, after ``wait``; -1 where logits were not finite."""
        first = sum(self.counts[:row])
        ids: list[int] = self.draw.host_ids[first : first + int(self.num_out[row])].tolist()
        return ids

    def to_host(self) -> list[Sampled | None]:
        """One entry a token, None for those behind a refused draft."""
        self.wait()
        sampled = self.draw.to_host()
        kept = [
            j < num
            for count, num in zip(self.counts, self.num_out.tolist(), strict=True)
            for j in range(count)
        ]
        return [each if keep else None for each, keep in zip(sampled, kept, strict=True)]


@dataclass(frozen=True)
class VerifiedOnGpu(Verified):
    """A step under way: the pinned ``num_out`` is written when ``event`` has happened."""

    event: torch.cuda.Event

    def wait(self) -> None:
        self.event.synchronize()
