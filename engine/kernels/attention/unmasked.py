"""Attentions without a mask, as attention in pieces calls them (triton_attention_pieces.py)."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from engine.kernels.attention.attention_pieces import Cut


@dataclass(frozen=True)
class Unmasked:
    """An attention without a mask, for rows that are ``cut`` so.

    ``attend``: each query's attention to all keys. q [heads, queries, head_dim], k and v
    [heads, keys, head_dim], whose last dimension is contiguous -> [parts, heads, queries, head_dim]
    in ``q``'s dtype, and float32 [parts, heads, queries], the natural logarithm of the sum of the
    weights: for each part of the keys, as many as it likes. ``name`` is for people.
    """

    name: str
    cut: Cut
    attend: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
