# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""The tiles of grouped products of experts, whatever the weights' dtype.

A program computes one tile: up to BLOCK_M pairs of one expert, times a band of the expert's
weights. ``plan_both`` (triton_plan.py) makes the tiles of both products.

Reference: torch_experts.add_experts; test: tests/kernels/test_shared_functions.py,
test_triton_moe.py, test_fp8.py.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from engine.gpu_arch import has_small_shared_memory
from engine.kernels.triton_arch import arch_of

MOST_IN_SMALL = 2
"""Rounds in flight of the largest tiles where shared memory is small."""


@dataclass(frozen=True)
class Tiles:
    """Tile sizes: pairs, rows of the weights and k, and rounds in flight."""

    pairs: int
    rows: int
    k: int
    stages: int
    warps: int
    bands: int = 1
    """Bands of ``rows`` that a program computes one after another."""
    tail: int = 0
    """If a list's last tile has at most this many pairs, the product has only this many rows."""

    def arguments(self, x: torch.Tensor) -> dict[str, Any]:
        """Launch arguments of a kernel with these tiles on the GPU of ``x``."""
        is_small = has_small_shared_memory(arch_of(x))
        return {
            "BLOCK_M": self.pairs,
            "BLOCK_K": self.k,
            "TAIL": self.tail,
            "num_warps": self.warps,
            "num_stages": min(self.stages, MOST_IN_SMALL) if is_small else self.stages,
        }


@triton.jit
def tile_of(p_tiles, tile, num_tiles):
    """(the expert of a tile; the tile's first place in the expert's list, negative if there is no
    such tile; the first row of h that the tile has)."""
    expert = tl.load(p_tiles + tile)
    start = tl.load(p_tiles + num_tiles + tile)
    h_row = tl.load(p_tiles + 2 * num_tiles + tile)
    return expert, start, h_row


@triton.jit
def list_of(p_lists, p_counts, expert, num_tokens):
    """(the address of an expert's list of pairs, its length)."""
    count = tl.load(p_counts + expert)
    return p_lists + expert.to(tl.int64) * num_tokens, count


@triton.jit
def pairs_of(p_list, start, count, NUM: tl.constexpr):
    """NUM pairs of a list from ``start`` on; -1 behind the list's end."""
    place = start + tl.arange(0, NUM)
    return tl.load(p_list + place, mask=place < count, other=-1)


def sizes(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    w_in: torch.Tensor,
    w_out: torch.Tensor,
) -> tuple[int, int, int, int]:
    """(tokens, hidden, dim, top_k) of the tensors; asserts that their shapes match."""
    (num_tokens, hidden), (num_experts, _, dim) = x.shape, w_out.shape
    assert w_in.shape == (num_experts, 2 * dim, hidden)
    assert w_out.shape == (num_experts, hidden, dim)
    assert ids.shape == weights.shape == (num_tokens, ids.shape[1])
    assert weights.dtype == torch.float32
    assert all(t.is_contiguous() for t in (x, ids, weights, w_in, w_out))
    return num_tokens, hidden, dim, ids.shape[1]
