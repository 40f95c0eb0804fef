# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Bands of rows of an expert in NVFP4, int4 or int8 times rows of tokens.

The kernels choose the rows.

A sum of gate or up is that of ``PARTS`` equal parts of a row, each added up by itself: with few
tokens the parts are computed side by side, with the same bits.

Reference: torch_experts.experts of the dequantised weights; test:
tests/kernels/experts/test_triton_nvfp4.py.
"""

import triton
import triton.language as tl

from engine.kernels.experts.triton_expert_bands import down_band
from engine.kernels.formats.triton_nvfp4 import COLUMNS, GROUP, add_nvfp4, packed_sum, zero_sums

PARTS = tl.constexpr(4)
"""Equal parts of a row of gate and up whose sums are added last."""


@triton.jit
def nvfp4_gate_up_band(
    p_x,
    p_words,
    p_scales,
    p_matrix_scales,
    expert,
    p_h,
    b_pair,
    band,
    K: tl.constexpr,
    DIM: tl.constexpr,
    TOP_K: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr,
    WEIGHTS_FIRST: tl.constexpr,
):
    BLOCK_M: tl.constexpr = b_pair.shape[0]
    ROWS: tl.constexpr = 2 * DIM
    PART: tl.constexpr = K // COLUMNS // PARTS
    o_n = band + tl.arange(0, BLOCK_N)
    valid = (b_pair >= 0)[:, None]
    o_k = tl.arange(0, GROUP)[None, :]
    p_rows = p_x + (tl.maximum(b_pair, 0) // TOP_K)[:, None] * K + o_k
    p_scales += expert.to(tl.int64) * (K // COLUMNS * ROWS) + o_n[:, None]
    p_words += (expert.to(tl.int64) * (K // COLUMNS * ROWS) + o_n[:, None]) * GROUP + o_k
    b_gate = zero_sums(BLOCK_M, BLOCK_N, WEIGHTS_FIRST)
    b_up = zero_sums(BLOCK_M, BLOCK_N, WEIGHTS_FIRST)
    b_all_gate = zero_sums(BLOCK_M, BLOCK_N, WEIGHTS_FIRST)
    b_all_up = zero_sums(BLOCK_M, BLOCK_N, WEIGHTS_FIRST)
    for block in tl.range(0, K // COLUMNS, num_stages=STAGES):
        b_x0 = tl.load(p_rows, mask=valid, other=0.0)
        b_x1 = tl.load(p_rows + GROUP, mask=valid, other=0.0)
        b_x2 = tl.load(p_rows + 2 * GROUP, mask=valid, other=0.0)
        b_x3 = tl.load(p_rows + 3 * GROUP, mask=valid, other=0.0)
        b_gate = add_nvfp4(b_gate, b_x0, b_x1, b_x2, b_x3, p_words, p_scales, WEIGHTS_FIRST)
        p_up, p_up_scales = p_words + DIM * GROUP, p_scales + DIM
        b_up = add_nvfp4(b_up, b_x0, b_x1, b_x2, b_x3, p_up, p_up_scales, WEIGHTS_FIRST)
        p_rows += COLUMNS
        p_words += ROWS * GROUP
        p_scales += ROWS
        if block - block // PART * PART == PART - 1:
            b_all_gate += b_gate
            b_all_up += b_up
            b_gate = zero_sums(BLOCK_M, BLOCK_N, WEIGHTS_FIRST)
            b_up = zero_sums(BLOCK_M, BLOCK_N, WEIGHTS_FIRST)
    b_gate = b_all_gate * tl.load(p_matrix_scales + 2 * expert)
    b_up = b_all_up * tl.load(p_matrix_scales + 2 * expert + 1)
    b_h = b_gate / (1.0 + tl.exp(-b_gate)) * b_up
    if WEIGHTS_FIRST:
        b_h = tl.trans(b_h)
    tl.store(p_h + b_pair[:, None] * DIM + o_n[None, :], b_h.to(p_h.dtype.element_ty), mask=valid)


@triton.jit
def _sum_of_parts(b_sums, TOKENS: tl.constexpr, BLOCK_N: tl.constexpr):
    """[TOKENS * PARTS, PARTS * BLOCK_N] of rows (token, part) and columns (part, n) -> [TOKENS,
    BLOCK_N]: the sums of products of one and the same part, in the order of parts."""
    b_sums = tl.reshape(b_sums, (TOKENS, PARTS, PARTS, BLOCK_N))
    o_row = tl.arange(0, PARTS)[None, :, None, None]
    o_column = tl.arange(0, PARTS)[None, None, :, None]
    b_sums = tl.sum(tl.where(o_row == o_column, b_sums, 0.0), axis=1)
    b_sums = tl.reshape(tl.permute(b_sums, (0, 2, 1)), (TOKENS, BLOCK_N, 2, 2))
    b_first, b_second = tl.split(b_sums)
    b_0, b_2 = tl.split(b_first)
    b_1, b_3 = tl.split(b_second)
    return b_0 + b_1 + b_2 + b_3


@triton.jit
def nvfp4_gate_up_parts(
    p_x,
    p_words,
    p_scales,
    p_matrix_scales,
    expert,
    p_h,
    b_pair,
    band,
    K: tl.constexpr,
    DIM: tl.constexpr,
    TOP_K: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr,
):
    """``nvfp4_gate_up_band`` for few tokens, with all parts of the sums computed side by side."""
    ROWS: tl.constexpr = 2 * DIM
    PART: tl.constexpr = K // COLUMNS // PARTS
    M: tl.constexpr = TOKENS * PARTS
    N: tl.constexpr = PARTS * BLOCK_N
    o_n = band + tl.arange(0, BLOCK_N)
    o_k = tl.arange(0, GROUP)[None, :]
    o_part = tl.arange(0, M) % PARTS
    b_row = tl.reshape(tl.broadcast_to(b_pair[:, None], (TOKENS, PARTS)), (M,))
    valid = (b_row >= 0)[:, None]
    p_rows = p_x + (tl.maximum(b_row, 0) // TOP_K)[:, None] * K
    p_rows += o_part[:, None] * (PART * COLUMNS) + o_k
    o_w = tl.arange(0, N) // BLOCK_N * (PART * ROWS) + band + tl.arange(0, N) % BLOCK_N
    p_scales += expert.to(tl.int64) * (K // COLUMNS * ROWS) + o_w[:, None]
    p_words += (expert.to(tl.int64) * (K // COLUMNS * ROWS) + o_w[:, None]) * GROUP + o_k
    b_gate = tl.zeros((M, N), tl.float32)
    b_up = tl.zeros((M, N), tl.float32)
    for _ in tl.range(0, PART, num_stages=STAGES):
        b_x0 = tl.load(p_rows, mask=valid, other=0.0)
        b_x1 = tl.load(p_rows + GROUP, mask=valid, other=0.0)
        b_x2 = tl.load(p_rows + 2 * GROUP, mask=valid, other=0.0)
        b_x3 = tl.load(p_rows + 3 * GROUP, mask=valid, other=0.0)
        b_gate = add_nvfp4(b_gate, b_x0, b_x1, b_x2, b_x3, p_words, p_scales, False)
        p_up, p_up_scales = p_words + DIM * GROUP, p_scales + DIM
        b_up = add_nvfp4(b_up, b_x0, b_x1, b_x2, b_x3, p_up, p_up_scales, False)
        p_rows += COLUMNS
        p_words += ROWS * GROUP
        p_scales += ROWS
    b_gate = _sum_of_parts(b_gate, TOKENS, BLOCK_N) * tl.load(p_matrix_scales + 2 * expert)
    b_up = _sum_of_parts(b_up, TOKENS, BLOCK_N) * tl.load(p_matrix_scales + 2 * expert + 1)
    b_h = b_gate / (1.0 + tl.exp(-b_gate)) * b_up
    p_out = p_h + b_pair[:, None] * DIM + o_n[None, :]
    tl.store(p_out, b_h.to(p_h.dtype.element_ty), mask=(b_pair >= 0)[:, None])


@triton.jit
def nvfp4_down_band(
    p_h,
    p_words,
    p_scales,
    p_matrix_scales,
    expert,
    p_y,
    b_pair,
    b_out,
    b_weight,
    band,
    HIDDEN: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr,
    WEIGHTS_FIRST: tl.constexpr,
):
    BLOCK_M: tl.constexpr = b_pair.shape[0]
    o_n = band + tl.arange(0, BLOCK_N)
    valid = (b_pair >= 0)[:, None]
    o_k = tl.arange(0, GROUP)[None, :]
    p_rows = p_h + tl.maximum(b_pair, 0)[:, None] * DIM + o_k
    p_scales += expert.to(tl.int64) * (DIM // COLUMNS * HIDDEN) + o_n[:, None]
    p_words += (expert.to(tl.int64) * (DIM // COLUMNS * HIDDEN) + o_n[:, None]) * GROUP + o_k
    b_y = packed_sum(
        p_rows, valid, p_words, p_scales,
        BLOCK_M, BLOCK_N, HIDDEN, DIM // COLUMNS, STAGES, WEIGHTS_FIRST,
    )  # fmt: skip
    if WEIGHTS_FIRST:
        b_y = tl.trans(b_y)
    b_y *= (tl.load(p_matrix_scales + expert) * b_weight)[:, None]
    p_out = p_y + b_out.to(tl.int64) * HIDDEN
    tl.store(p_out[:, None] + o_n[None, :], b_y, mask=valid)


@triton.jit
def shared_down_band(
    p_h,
    p_w,
    p_scales,
    p_factors,
    expert,
    p_y,
    b_row,
    b_out,
    b_weight,
    band,
    HIDDEN: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SHARED_N: tl.constexpr,
    SHARED_K: tl.constexpr,
    FP8: tl.constexpr,
    PACKED: tl.constexpr,
    STAGES: tl.constexpr,
    WEIGHTS_FIRST: tl.constexpr,
):
    """The shared expert's band of ``down``, whose weights are packed, in FP8 or plain; ``expert``
    is 0."""
    BLOCK_M: tl.constexpr = b_row.shape[0]
    if PACKED:
        nvfp4_down_band(
            p_h, p_w, p_scales, p_factors, expert, p_y, b_row, b_out, b_weight, band,
            HIDDEN, DIM, BLOCK_N, STAGES, WEIGHTS_FIRST,
        )  # fmt: skip
    else:
        for i in range(BLOCK_N // SHARED_N):
            down_band(
                p_h, p_w, p_scales, expert, p_y, b_row, b_out, b_weight, band + i * SHARED_N,
                HIDDEN, DIM, BLOCK_M, SHARED_N, SHARED_K, FP8,
            )  # fmt: skip
