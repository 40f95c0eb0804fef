"""The drafts that a step verifies, as its sampling needs them.

A step with drafts samples a run of tokens for each sequence: the one after its last token, which is
certain, then one after each draft. What penalties and a grammar say of a token depends on the
tokens before it, so on the drafts before it in the run. If one of those is refused, what was
sampled behind it is dropped.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from engine.upload import upload


@dataclass(frozen=True)
class FedDrafts:
    """``ids`` int64 [drafts, state slots] are on the device; of each row, ``places`` says how many
    ids of its slot stand before its token. ``on_host`` gives those of a slot to the host, and may
    wait for them."""

    ids: torch.Tensor
    places: Sequence[int]
    on_host: Callable[[int], Sequence[int]]

    def part(self, rows: slice) -> "FedDrafts":
        return FedDrafts(self.ids, self.places[rows], self.on_host)

    def num_before(self) -> torch.Tensor:
        """``places`` on the device, int64 [rows]."""
        return upload(torch.tensor(self.places, dtype=torch.int64), self.ids.device)

    def counted(self, counts: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """counts int32 [rows, ids], which are changed, and one more for each draft before the
        row's token; slots int64 [rows]."""
        num_before = self.num_before()
        for place, ids in enumerate(self.ids):
            stands_before = (num_before > place).to(counts.dtype).unsqueeze(1)
            counts.scatter_add_(1, ids.index_select(0, slots).unsqueeze(1), stands_before)
        return counts
