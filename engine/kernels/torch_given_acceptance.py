"""Drafts accepted with a given probability (engine/given_acceptance.py), in plain PyTorch."""

import torch

from engine.kernels.philox import MASK, philox

ACCEPTANCE_STREAM = 0x42544E32
"""Last counter word of these draws, so that they never collide with sampling noise."""


def uniform(seeds: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Uniform numbers in (0, 1), float32 [rows], from ``seeds`` and ``positions`` int64 [rows]."""
    low, high = positions & MASK, (positions >> 32) & MASK
    stream = torch.full_like(low, ACCEPTANCE_STREAM)
    key = (seeds & MASK, (seeds >> 32) & MASK)
    word = philox((torch.zeros_like(low), low, high, stream), key)[0]
    return ((word >> 9).to(torch.float32) + 0.5) * 2.0**-23


def given_acceptance(
    chosen: torch.Tensor,
    drafts: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    probability: float,
) -> torch.Tensor:
    """The tokens that verify drafts, int64 [rows].

    ``chosen``: the target's choices. ``drafts``: the draft that each row verifies, -1: none. Both
    int64 [rows]. Rows without a draft, and rows without a choice (-1), stay as they are.
    ``positions``: the index of each token.
    """
    other = torch.where(drafts > 0, drafts - 1, 1)
    rejected = torch.where(chosen == drafts, other, chosen)
    decided = torch.where(uniform(seeds, positions) < probability, drafts, rejected)
    return torch.where((drafts < 0) | (chosen < 0), chosen, decided)
