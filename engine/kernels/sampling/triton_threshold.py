"""The smallest logit that short filters keep: min_p, top_k of at most SHORT_TOP_K, then top_p.

    x_i = logit_i / temperature,   best = max x,   x^(k) = the k-th largest;
    likely = best + log min_p;
    share_i = exp(x_i - best) / (its sum over the k best ids), 0 if x_i < likely;
    lowest = max(likely, x^(k), min {x_i : Σ_{x_j > x_i} share_j < top_p}).

The sum excludes ids below ``likely`` too. The last term only counts if top_p < 1. Division keeps
the order, so the logits themselves are compared, as integers of the same order. The k-th largest
and the last term are both the largest key such that all keys at least as large have a given weight:
k ids, or a share of top_p. A binary search over the keys finds it without sorting. The first kernel
takes a tile of ids and keeps its k best, which is all that a row can need; the second finds the
row's threshold among them. The result depends neither on the length of tiles nor on other rows.

Reference: torch_sampling.threshold; test: tests/kernels/sampling/test_threshold.py.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from engine.kernels.sampling.torch_sampling import SHORT_TOP_K
from engine.kernels.sampling.triton_sampling import _log

TILE = 4096
"""Number of ids per program: one row fills half the GPU, and leaves 61 tiles' best to one
program."""


@dataclass(frozen=True)
class ThresholdWorkspace:
    """Scratch memory of ``lowest_kept``, int32 [rows, tiles, best]; calls on one stream may share
    it."""

    best: torch.Tensor

    @classmethod
    def allocate(
        cls, max_rows: int, num_ids: int, device: torch.device, *, tile: int = TILE
    ) -> "ThresholdWorkspace":
        shape = (max_rows, triton.cdiv(num_ids, tile), SHORT_TOP_K)
        return cls(torch.empty(shape, dtype=torch.int32, device=device))


def lowest_kept(
    logits: torch.Tensor,
    num_valid_ids: int,
    temperatures: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    state_slots: torch.Tensor,
    workspace: ThresholdWorkspace,
    *,
    tile: int = TILE,
    num_warps: int = 4,
) -> torch.Tensor:
    """The smallest logit / temperature that each row's filters keep, float32 [rows].

    -inf, which keeps all ids, for rows without 0 < top_k <= SHORT_TOP_K, greedy rows and rows whose
    slot is -1. logits [rows, ids] float32; only the first ``num_valid_ids`` count.
    temperatures, top_p, min_p (float32) and top_k (int64) are columns [state slots] of the
    settings' tables, read by state_slots [rows]. NaN if a logit is NaN, so that nothing is dropped.
    Agrees with torch_sampling.threshold unless top_p or min_p is within rounding of a share.
    """
    num_rows = logits.shape[0]
    num_tiles = triton.cdiv(num_valid_ids, tile)
    assert logits.dtype == torch.float32, logits.dtype
    assert 0 < num_valid_ids <= logits.shape[1], (num_valid_ids, logits.shape)
    assert logits.stride(1) == 1, logits.stride()
    assert temperatures.dtype == top_p.dtype == min_p.dtype == torch.float32, top_p.dtype
    assert temperatures.stride() == top_p.stride() == min_p.stride(), top_p.stride()
    assert top_k.dtype == torch.int64, top_k.dtype
    assert state_slots.shape == (num_rows,), (state_slots.shape, num_rows)
    assert state_slots.is_contiguous()
    assert workspace.best.shape[0] >= num_rows, workspace.best.shape
    assert workspace.best.shape[1:] == (num_tiles, SHORT_TOP_K), (workspace.best.shape, num_tiles)
    lowest = torch.empty(num_rows, dtype=torch.float32, device=logits.device)
    if num_rows == 0:
        return lowest
    _tile_kernel[(num_tiles, num_rows)](
        logits, temperatures, top_k, state_slots, workspace.best,
        logits.stride(0), temperatures.stride(0), top_k.stride(0), num_valid_ids,
        TILE=tile, MOST=SHORT_TOP_K, num_warps=num_warps,
    )  # fmt: skip
    _row_kernel[(num_rows,)](
        workspace.best, temperatures, top_k, top_p, min_p, state_slots, lowest,
        temperatures.stride(0), top_k.stride(0), num_valid_ids, num_tiles,
        TILES=triton.next_power_of_2(num_tiles), MOST=SHORT_TOP_K, num_warps=8,
    )  # fmt: skip
    return lowest


@triton.jit
def _key(b_value):
    """Convert floats to integer keys (uint32, not 0) of the same order, NaN above all."""
    b_bits = b_value.to(tl.uint32, bitcast=True)
    b_key = tl.where(b_bits >> 31 == 1, b_bits ^ 0xFFFFFFFF, b_bits ^ 0x80000000)
    return tl.where(b_value != b_value, 0xFFFFFFFF, b_key)


@triton.jit
def _value(b_key):
    """Convert keys back to floats."""
    b_bits = tl.where(b_key >> 31 == 1, b_key ^ 0x80000000, b_key ^ 0xFFFFFFFF)
    return b_bits.to(tl.float32, bitcast=True)


@triton.jit
def _largest(b_key, b_weight, target, low, high):
    """The largest key from low to high such that all keys at least as large weigh ``target`` or
    more.

    The keys from ``low`` on must weigh that much, the keys above ``high`` must not.
    """
    while low < high:
        middle = high - ((high - low) >> 1)
        weight = tl.sum(tl.where(b_key >= middle, b_weight, 0), 0)
        low = tl.where(weight >= target, middle, low)
        # An exact hit ends the search early: the smallest key from there on is the answer.
        high = tl.where(weight > target, high, tl.where(weight == target, middle, middle - 1))
    return tl.min(tl.where(b_key >= low, b_key, 0xFFFFFFFF), 0)


@triton.jit
def _num_best(p_temperatures, p_top_k, temperature_stride, top_k_stride, slot, num_ids, MOST):
    """Number of ids that top_k keeps (int32); 0 for a row without short filters."""
    if slot < 0:
        num_best = tl.full([], 0, tl.int64)
    else:
        num_best = tl.load(p_top_k + slot * top_k_stride)
        greedy = tl.load(p_temperatures + slot * temperature_stride) == 0.0
        num_best = tl.where(greedy | (num_best < 0) | (num_best > MOST), 0, num_best)
    return tl.minimum(num_best, num_ids).to(tl.int32)


@triton.jit
def _tile_kernel(
    p_logits,
    p_temperatures,
    p_top_k,
    p_slots,
    p_best,
    logits_stride,
    temperature_stride,
    top_k_stride,
    num_valid_ids,
    TILE: tl.constexpr,
    MOST: tl.constexpr,
):
    tile, row = tl.program_id(0), tl.program_id(1)
    slot = tl.load(p_slots + row).to(tl.int64)
    num_best = _num_best(
        p_temperatures, p_top_k, temperature_stride, top_k_stride, slot, num_valid_ids, MOST
    )
    if num_best == 0:
        return
    p_logits += row.to(tl.int64) * logits_stride
    o_id = tile * TILE + tl.arange(0, TILE)
    if (tile + 1) * TILE <= num_valid_ids:
        b_key = _key(tl.load(p_logits + o_id))
    else:
        m_id = o_id < num_valid_ids
        b_key = tl.where(m_id, _key(tl.load(p_logits + o_id, mask=m_id, other=0.0)), 0)
    b_one = tl.full([TILE], 1, tl.int32)
    # 0 if the tile has fewer ids than that.
    least = _largest(b_key, b_one, num_best, tl.full([], 0, tl.uint32), tl.max(b_key, 0))
    above = b_key > least
    b_rank = tl.cumsum(above.to(tl.int32), 0) - 1
    p_best += (row * tl.num_programs(0) + tile) * MOST
    tl.store(p_best + b_rank, b_key.to(tl.int32, bitcast=True), mask=above)
    # The rest of the best are equal.
    o_rank = tl.arange(0, MOST)
    m_equal = (o_rank >= tl.sum(above.to(tl.int32), 0)) & (o_rank < num_best)
    tl.store(p_best + o_rank, tl.full([MOST], 0, tl.int32) + least.to(tl.int32), mask=m_equal)


@triton.jit
def _row_kernel(
    p_best,
    p_temperatures,
    p_top_k,
    p_top_p,
    p_min_p,
    p_slots,
    p_lowest,
    float_stride,
    top_k_stride,
    num_valid_ids,
    num_tiles,
    TILES: tl.constexpr,
    MOST: tl.constexpr,
):
    row = tl.program_id(0)
    slot = tl.load(p_slots + row).to(tl.int64)
    num_best = _num_best(
        p_temperatures, p_top_k, float_stride, top_k_stride, slot, num_valid_ids, MOST
    )
    if num_best == 0:
        tl.store(p_lowest + row, float("-inf"))
        return
    temperature = tl.load(p_temperatures + slot * float_stride)
    top_p = tl.load(p_top_p + slot * float_stride)
    min_p = tl.load(p_min_p + slot * float_stride)
    o_best = tl.arange(0, TILES * MOST)
    m_best = (o_best < num_tiles * MOST) & (o_best % MOST < num_best)
    b_key = tl.load(p_best + row * num_tiles * MOST + o_best, mask=m_best, other=0)
    b_key = b_key.to(tl.uint32, bitcast=True)
    b_one = tl.full([TILES * MOST], 1, tl.int32)
    first = tl.max(b_key, 0)
    last = _largest(b_key, b_one, num_best, tl.full([], 0, tl.uint32), first)
    best = tl.div_rn(_value(first), temperature)
    likely = tl.full([], float("-inf"), tl.float32)
    if min_p > 0.0:
        likely = best + _log(min_p)
    lowest = last
    if top_p < 1.0:
        # Of ids equal to the last one, only as many have a share as there are places left.
        above, equal = b_key > last, b_key == last
        num_left = (num_best - tl.sum(above.to(tl.int32), 0)).to(tl.float32)
        num_equal = tl.sum(equal.to(tl.int32), 0).to(tl.float32)
        b_scaled = tl.div_rn(_value(b_key), temperature)
        b_weight = tl.exp(b_scaled - best)
        b_weight = tl.where(equal, b_weight * tl.div_rn(num_left, num_equal), b_weight)
        b_weight = tl.where((above | equal) & (b_scaled >= likely), b_weight, 0.0)
        lowest = _largest(b_key, b_weight, top_p * tl.sum(b_weight, 0), last, first)
    kept = tl.maximum(tl.div_rn(_value(lowest), temperature), likely)
    # NaN drops nothing; the draw reports it.
    tl.store(p_lowest + row, tl.where(best != best, best, kept))
