"""What the host gets of a decode step with drafts on CUDA."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.batch import Sampled
from engine.step import Draw


@dataclass(frozen=True)
class Verified:
    """A step on its way to the host. ``counts``: of each row the tokens that were sampled;
    ``num_out``, pinned, how many of them are output."""

    draw: Draw
    counts: Sequence[int]
    num_out: torch.Tensor
    copied: torch.cuda.Event

    def wait(self) -> None:
        self.copied.synchronize()

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
