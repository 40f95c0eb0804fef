"""The drafts that a step verifies, for its sampling.

A step with drafts samples a run of tokens for each sequence: one after its last certain token, and
one after each draft. Penalties and grammar of a token depend on the tokens before it, so on the
drafts before it in the run. If one of these is rejected, the tokens sampled behind it are dropped.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from engine.upload import upload


@dataclass(frozen=True)
class FedDrafts:
    """The drafts of a step: ``ids`` int64 [drafts, state slots] on the device. ``places``: for each
    row, how many drafts of its slot precede its token. ``on_host`` returns a slot's drafts on the
    host, and may wait for them. ``verified``: for each row, which of its slot's drafts its token
    verifies, -1: none; empty while drafts are being made."""

    ids: torch.Tensor
    places: Sequence[int]
    on_host: Callable[[int], Sequence[int]]
    verified: Sequence[int] = ()

    @classmethod
    def of_runs(
        cls, ids: torch.Tensor, counts: Sequence[int], on_host: Callable[[int], Sequence[int]]
    ) -> "FedDrafts":
        """The drafts of runs of ``counts`` tokens: each token verifies the draft behind it, except
        for the last token of a run."""
        places = [place for count in counts for place in range(count)]
        verified = [
            place if place + 1 < count else -1 for count in counts for place in range(count)
        ]
        return cls(ids, places, on_host, verified)

    def part(self, rows: slice) -> "FedDrafts":
        return FedDrafts(self.ids, self.places[rows], self.on_host, self.verified[rows])

    def num_before(self) -> torch.Tensor:
        """``places`` on the device, int64 [rows]."""
        return upload(torch.tensor(self.places, dtype=torch.int64), self.ids.device)

    def counted(self, counts: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """Add one to ``counts`` int32 [rows, ids], in place, for each draft before the row's token;
        slots int64 [rows]."""
        num_before = self.num_before()
        for place, ids in enumerate(self.ids):
            stands_before = (num_before > place).to(counts.dtype).unsqueeze(1)
            counts.scatter_add_(1, ids.index_select(0, slots).unsqueeze(1), stands_before)
        return counts
