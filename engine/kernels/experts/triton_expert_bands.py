# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""A band of an expert's weights times the tokens that chose the expert.

A band is BLOCK_N rows of the weights. ``b_pair`` [BLOCK_M] names the rows of the input by which it
is multiplied: a pair is ``t * TOP_K + j``, or -1 (triton_plan.py). ``all_tokens`` finds pairs
without a plan.

Reference: torch_experts.add_experts; test: tests/kernels/experts/test_triton_moe.py,
test_shared_functions.py.
"""

import triton
import triton.language as tl

from engine.kernels.formats.triton_fp8 import add_product
from engine.kernels.triton_dot import dot


@triton.jit
def all_tokens(
    p_ids, pair, num_tokens, TOP_K: tl.constexpr, BLOCK_M: tl.constexpr, SINGLE: tl.constexpr
):
    """(the expert of ``pair``; True if there is an expert and the pair is the first to choose it;
    the pair of each row t that chose it, or -1). SINGLE: one token, whose experts differ."""
    expert = tl.load(p_ids + pair)
    o_m = tl.arange(0, BLOCK_M)
    if SINGLE:
        is_first = expert >= 0
        b_pair = tl.where(o_m == 0, pair, -1)
    else:
        COLUMNS: tl.constexpr = triton.next_power_of_2(TOP_K)
        o_k = tl.arange(0, COLUMNS)[None, :]
        o_pair = o_m[:, None] * TOP_K + o_k
        mask = (o_m < num_tokens)[:, None]
        if COLUMNS != TOP_K:
            mask &= o_k < TOP_K
        b_ids = tl.load(p_ids + o_pair, mask=mask, other=-1)
        b_pair = tl.max(tl.where(b_ids == expert, o_pair, -1), axis=1)
        first = tl.min(tl.where(b_pair >= 0, b_pair, BLOCK_M * TOP_K), axis=0)
        is_first = (first == pair) & (expert >= 0)
    return expert, is_first, b_pair


@triton.jit
def gate_up_band(
    p_x,
    p_w,
    p_h,
    b_pair,
    band,
    K: tl.constexpr,
    DIM: tl.constexpr,
    TOP_K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Compute BLOCK_N columns of h from ``band`` on; ``p_w`` begins at the expert."""
    o_n = band + tl.arange(0, BLOCK_N)
    valid = (b_pair >= 0)[:, None]
    o_k = tl.arange(0, BLOCK_K)[None, :]
    p_rows = p_x + (tl.maximum(b_pair, 0) // TOP_K)[:, None] * K + o_k
    p_band = p_w + o_n[:, None] * K + o_k
    b_gate = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    b_up = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in tl.range(0, K, BLOCK_K):
        b_x = tl.load(p_rows + k, mask=valid, other=0.0)
        b_wg = tl.load(p_band + k)
        b_wu = tl.load(p_band + DIM * K + k)
        b_gate = dot(b_x, tl.trans(b_wg), b_gate)
        b_up = dot(b_x, tl.trans(b_wu), b_up)
    b_h = b_gate / (1.0 + tl.exp(-b_gate)) * b_up
    tl.store(p_h + b_pair[:, None] * DIM + o_n[None, :], b_h.to(p_h.dtype.element_ty), mask=valid)


@triton.jit
def down_band(
    p_h,
    p_w,
    p_scales,
    expert,
    p_y,
    b_row,
    b_out,
    b_weight,
    band,
    HIDDEN: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    FP8: tl.constexpr,
):
    """Compute result ``b_out`` of ``p_y`` from row ``b_row`` of ``p_h``; ``p_y`` is one pointer for
    all rows, or a pointer per row."""
    o_n = band + tl.arange(0, BLOCK_N)
    valid = (b_row >= 0)[:, None]
    o_k = tl.arange(0, BLOCK_K)[None, :]
    p_rows = p_h + tl.maximum(b_row, 0)[:, None] * DIM + o_k
    p_band = p_w + expert.to(tl.int64) * (HIDDEN * DIM) + o_n[:, None] * DIM + o_k
    if FP8:
        p_scales += (expert * (HIDDEN // BLOCK_K) + band // BLOCK_K) * (DIM // BLOCK_K)
    b_y = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in tl.range(0, DIM, BLOCK_K):
        b_h = tl.load(p_rows + k, mask=valid, other=0.0)
        b_w = tl.load(p_band + k)
        b_y = add_product(b_y, b_h, b_w, p_scales + k // BLOCK_K, FP8)
    p_out = p_y + b_out.to(tl.int64) * HIDDEN
    b_y = (b_y * b_weight[:, None]).to(p_out.dtype.element_ty)
    tl.store(p_out[:, None] + o_n[None, :], b_y, mask=valid)
