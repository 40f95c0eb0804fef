# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""A band of an expert's weights in FP8 times tokens split in two (triton_split.py).

As ``triton_expert_bands``, with dot(w, [q0, q1]^T), where the weights are the longer side. h is
split too: p_h e4m3 [pairs, 2, DIM], with p_hs [pairs, DIM / H_GROUP].

Reference: torch_experts.add_experts; test: tests/kernels/test_fp8.py.
"""

import triton
import triton.language as tl

from engine.kernels.formats.triton_fp8 import BLOCK_K
from engine.kernels.formats.triton_split import PARTS, power_of_two, sum_of_parts, two_parts
from engine.kernels.triton_dot import dot

H_GROUP = tl.constexpr(64)
"""Columns of h that share a scale: the columns that a program of ``gate_up_split`` computes."""


@triton.jit
def _both_parts(b_pair, BLOCK_M: tl.constexpr):
    """Each pair once per part, [BLOCK_M * PARTS]."""
    return tl.reshape(tl.join(b_pair, b_pair), (BLOCK_M * PARTS,))


@triton.jit
def gate_up_split(
    p_q,
    p_s,
    p_w,
    p_scales,
    p_h,
    p_hs,
    b_pair,
    band,
    K: tl.constexpr,
    DIM: tl.constexpr,
    TOP_K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Compute BLOCK_N columns of h from ``band`` on; ``p_w`` begins at the expert, ``p_scales`` at
    the band's scales. A tile alternates eight rows of gate and eight rows of up, so that a thread
    holds both sums of a column of h."""
    tl.static_assert(BLOCK_N == H_GROUP)
    R: tl.constexpr = BLOCK_M * PARTS
    M: tl.constexpr = BLOCK_N * 2
    UP_SCALES: tl.constexpr = DIM // BLOCK_K * (K // BLOCK_K)
    o_k = tl.arange(0, BLOCK_K)[None, :]
    o_r = tl.arange(0, M)
    is_up = o_r % 16 >= 8
    o_w = band + o_r // 16 * 8 + o_r % 8 + tl.where(is_up, DIM, 0)
    p_band = p_w + o_w[:, None] * K + o_k
    b_pair_q = _both_parts(b_pair, BLOCK_M)
    o_q = tl.maximum(b_pair_q, 0) // TOP_K * PARTS + tl.arange(0, R) % PARTS
    p_rows = p_q + o_q[:, None] * K + o_k
    valid_q = (b_pair_q >= 0)[:, None]
    gate_scale = tl.load(p_scales)
    up_scale = tl.load(p_scales + UP_SCALES)
    b_y = tl.zeros((M, R), tl.float32)
    for k in tl.range(0, K, BLOCK_K, num_stages=STAGES):
        b_q = tl.load(p_rows + k, mask=valid_q, other=0.0)
        b_w = tl.load(p_band + k)
        # Read a round ahead: its use would wait for it.
        p_next = p_scales + tl.minimum(k + BLOCK_K, K - BLOCK_K) // BLOCK_K
        next_gate = tl.load(p_next)
        next_up = tl.load(p_next + UP_SCALES)
        b_part = dot(b_w, tl.trans(b_q), tl.zeros((M, R), tl.float32))
        b_y += b_part * tl.where(is_up[:, None], up_scale, gate_scale)
        gate_scale, up_scale = next_gate, next_up
    b_s = tl.load(p_s + tl.maximum(b_pair, 0) // TOP_K)
    b_y = sum_of_parts(b_y, M, BLOCK_M) * b_s[None, :]
    b_y = tl.permute(tl.reshape(b_y, (BLOCK_N // 8, 2, 8, BLOCK_M)), (0, 2, 3, 1))
    b_gate, b_up = tl.split(b_y)
    b_gate = tl.reshape(b_gate, (BLOCK_N, BLOCK_M))
    b_up = tl.reshape(b_up, (BLOCK_N, BLOCK_M))
    b_h = b_gate / (1.0 + tl.exp(-b_gate)) * b_up
    # Rounded as the bfloat16 that two parts hold.
    b_h = b_h.to(tl.bfloat16).to(tl.float32)
    b_hs, b_inverse = power_of_two(tl.max(tl.abs(b_h), axis=0))
    b_first, b_second = two_parts(b_h * b_inverse[None, :])
    valid = b_pair >= 0
    b_row = b_pair.to(tl.int64)
    p_out = p_h + b_row[None, :] * (PARTS * DIM) + band + tl.arange(0, BLOCK_N)[:, None]
    tl.store(p_out, b_first, mask=valid[None, :])
    tl.store(p_out + DIM, b_second, mask=valid[None, :])
    tl.store(p_hs + b_row * (DIM // H_GROUP) + band // H_GROUP, b_hs, mask=valid)


@triton.jit
def down_split(
    p_h,
    p_hs,
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
    BANDS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """``down_band`` for the split of h that ``gate_up_split`` writes, for BANDS bands from ``band``
    on: the next band's first weights are loaded while a band is finished."""
    tl.static_assert(BLOCK_K == 2 * H_GROUP)
    R: tl.constexpr = BLOCK_M * PARTS
    ROUNDS: tl.constexpr = DIM // BLOCK_K
    b_row_q = _both_parts(b_row, BLOCK_M)
    valid_q = b_row_q >= 0
    b_from = tl.maximum(b_row_q, 0).to(tl.int64)
    o_k = tl.arange(0, H_GROUP)[None, :]
    o_n = band + tl.arange(0, BLOCK_N)
    p_rows = p_h + (b_from * PARTS + tl.arange(0, R) % PARTS)[:, None] * DIM + o_k
    p_row_scales = p_hs + b_from * (DIM // H_GROUP)
    p_band = p_w + expert.to(tl.int64) * (HIDDEN * DIM) + o_n[:, None] * DIM + o_k
    p_scales += expert * (HIDDEN // BLOCK_K) * ROUNDS
    p_out = p_y + b_out.to(tl.int64) * HIDDEN
    scale = tl.load(p_scales + band // BLOCK_K * ROUNDS)
    b_s0 = tl.load(p_row_scales, mask=valid_q, other=0.0)
    b_s1 = tl.load(p_row_scales + 1, mask=valid_q, other=0.0)
    b_y = tl.zeros((BLOCK_N, R), tl.float32)
    # Two groups per round, whose weights share a scale: half as many waits for memory.
    for i in tl.range(0, BANDS * ROUNDS, num_stages=STAGES):
        done = i // ROUNDS
        k = (i - done * ROUNDS) * BLOCK_K
        row = done * BLOCK_N
        b_w0 = tl.load(p_band + row * DIM + k)
        b_w1 = tl.load(p_band + row * DIM + k + H_GROUP)
        b_h0 = tl.load(p_rows + k, mask=valid_q[:, None], other=0.0)
        b_h1 = tl.load(p_rows + k + H_GROUP, mask=valid_q[:, None], other=0.0)
        # Read a round ahead: its use would wait for it.
        following = tl.minimum(i + 1, BANDS * ROUNDS - 1)
        next_done = following // ROUNDS
        next_round = following - next_done * ROUNDS
        next_block = (band + next_done * BLOCK_N) // BLOCK_K
        next_scale = tl.load(p_scales + next_block * ROUNDS + next_round)
        p_next = p_row_scales + next_round * 2
        b_next0 = tl.load(p_next, mask=valid_q, other=0.0)
        b_next1 = tl.load(p_next + 1, mask=valid_q, other=0.0)
        b_part0 = dot(b_w0, tl.trans(b_h0), tl.zeros((BLOCK_N, R), tl.float32))
        b_part1 = dot(b_w1, tl.trans(b_h1), tl.zeros((BLOCK_N, R), tl.float32))
        b_y += b_part0 * (b_s0 * scale)[None, :]
        b_y += b_part1 * (b_s1 * scale)[None, :]
        scale, b_s0, b_s1 = next_scale, b_next0, b_next1
        if k == DIM - BLOCK_K:
            b_sum = tl.trans(sum_of_parts(b_y, BLOCK_N, BLOCK_M)) * b_weight[:, None]
            b_sum = b_sum.to(p_out.dtype.element_ty)
            tl.store(p_out[:, None] + (o_n + row)[None, :], b_sum, mask=(b_row >= 0)[:, None])
            b_y = tl.zeros((BLOCK_N, R), tl.float32)
