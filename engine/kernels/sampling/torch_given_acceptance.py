"""Drafts accepted with a given probability (sampling/given_acceptance.py), in plain PyTorch."""

import torch

from engine.kernels.sampling.philox import ACCEPTANCE_STREAM, to_uniform, words_at


def uniform(seeds: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Uniform numbers in (0, 1), float32 [rows], from ``seeds`` and ``positions`` int64 [rows]."""
    words = words_at(torch.zeros_like(positions), seeds, positions, ACCEPTANCE_STREAM)
    return to_uniform(words[0])


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
