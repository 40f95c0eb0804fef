"""The result of a decode step with drafts, for the host."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.batch import Sampled
from engine.step import Draw


@dataclass(frozen=True)
class Verified:
    """The tokens of a step. ``counts``: number of sampled tokens of each row. ``num_out``, on the
    host: how many of them are output."""

    draw: Draw
    counts: Sequence[int]
    num_out: torch.Tensor

    @property
    def is_known(self) -> bool:
        return self.draw.is_known

    def wait(self) -> None:
        """Wait until ``num_out`` is on the host."""
        self.draw.wait()

    def output(self, row: int) -> Sequence[int]:
        """The tokens of the row's sequence, after ``wait``; -1 where logits were not finite."""
        first = sum(self.counts[:row])
        ids: list[int] = self.draw.host_ids[first : first + int(self.num_out[row])].tolist()
        return ids

    def to_host(self) -> list[Sampled | None]:
        """One entry per token, None for tokens behind a rejected draft."""
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
    """A step under way: the pinned ``num_out`` is written once ``event`` has passed."""

    event: torch.cuda.Event

    @property
    def is_known(self) -> bool:
        return bool(self.event.query())

    def wait(self) -> None:
        self.event.synchronize()
