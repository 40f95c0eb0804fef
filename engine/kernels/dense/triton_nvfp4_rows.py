# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""A band of rows in NVFP4, int4 or int8 times a few tokens, for matrices that are no experts.

Weights are the first operand of the product: they are unpacked to the registers from which the
tensor cores read them.

Reference: x @ Matrix.dequantised().T; test: tests/kernels/dense/test_triton_nvfp4_rows.py.
"""

import triton
import triton.language as tl

from engine.kernels.formats.triton_nvfp4 import COLUMNS, GROUP, packed_sum
from engine.kernels.triton_overlap import prefetch
from engine.model.packed_experts import RUN

FACTOR_ROWS = tl.constexpr(RUN)
"""Rows that share a matrix scale."""


@triton.jit
def prefetch_packed(
    p_words, p_scales, band, ROWS: tl.constexpr, BLOCK_N: tl.constexpr, ROUNDS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Prefetch the first ``ROUNDS`` blocks of columns, a power of two, of a band of rows."""
    o_row = tl.arange(0, ROUNDS) * ROWS + band
    WORD: tl.constexpr = p_words.dtype.element_ty.primitive_bitwidth // 8
    prefetch(p_words + o_row.to(tl.int64) * GROUP, BLOCK_N * GROUP * WORD, PDL)
    prefetch(p_scales + o_row, BLOCK_N * 4, PDL)


@triton.jit
def packed_product(
    p_x,
    stride_x,
    first,
    num_tokens,
    p_words,
    p_scales,
    p_factors,
    band,
    ROWS: tl.constexpr,
    K: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr,
    WEIGHTS_FIRST: tl.constexpr,
):
    """Multiply ``K`` columns of the tokens from ``first`` on by the rows from ``band`` on ->
    [BLOCK_T, BLOCK_N] float32. ``ROWS``: all rows of the matrix in NVFP4."""
    tl.static_assert(FACTOR_ROWS % BLOCK_N == 0)
    tokens = first + tl.arange(0, BLOCK_T)
    valid = (tokens < num_tokens)[:, None]
    o_k = tl.arange(0, GROUP)[None, :]
    o_n = band + tl.arange(0, BLOCK_N)[:, None]
    p_rows = p_x + tokens[:, None] * stride_x + o_k
    p_words += o_n.to(tl.int64) * GROUP + o_k
    p_scales += o_n
    factor = tl.load(p_factors + band // FACTOR_ROWS)
    b_y = packed_sum(
        p_rows, valid, p_words, p_scales,
        BLOCK_T, BLOCK_N, ROWS, K // COLUMNS, STAGES, WEIGHTS_FIRST,
    )  # fmt: skip
    if WEIGHTS_FIRST:
        b_y = tl.trans(b_y)
    return b_y * factor
