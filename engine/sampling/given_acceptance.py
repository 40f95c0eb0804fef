"""The verification of drafts in a benchmark with a given acceptance: random weights accept none.

    u < probability    the draft is accepted: the token is the draft, whatever the target chose
    otherwise          it is rejected: the token is the target's choice; if that is the draft, the
                       id before it (1 for id 0)

u is uniform in (0, 1), by the sequence's seed and the token's position alone: whether a draft is
accepted depends on neither batch, nor worker, nor the number of drafts. The draw of the target's
choice is followed by this decision, and all that comes later works as for the target's choice.
vLLM calls it synthetic rejection sampling.
"""

from dataclasses import dataclass

import torch

from engine.kernels.sampling.torch_given_acceptance import given_acceptance


@dataclass(frozen=True)
class GivenAcceptance:
    """Decides about the drafts of one step. ``drafts`` int64 [drafts, state slots]; ``verified``
    int64 [rows]: which of its slot's drafts a row verifies, -1: none; ``seeds`` int64 [state
    slots]."""

    probability: float
    drafts: torch.Tensor
    verified: torch.Tensor
    seeds: torch.Tensor

    def decided(
        self, chosen: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor
    ) -> torch.Tensor:
        """The step's tokens, int64 [rows], for the target's choices ``chosen``. ``slots`` and
        ``positions`` int64 [rows]: each token's state slot and index."""
        drafts = self.drafts[self.verified.clamp(min=0), slots]
        drafts = torch.where(self.verified < 0, -1, drafts)
        return given_acceptance(chosen, drafts, self.seeds[slots], positions, self.probability)

    def decide(
        self,
        chosen: torch.Tensor,
        on_host: torch.Tensor,
        slots: torch.Tensor,
        positions: torch.Tensor,
    ) -> None:
        """``decided`` on CUDA, in place: in ``chosen``, and in pinned memory ``on_host``."""
        from engine.kernels.sampling.triton_given_acceptance import decide_drafts  # needs a GPU

        decide_drafts(
            chosen, on_host, self.drafts, self.verified, self.seeds, slots, positions,
            self.probability,
        )  # fmt: skip
