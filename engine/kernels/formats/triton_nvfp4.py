# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Matrices in NVFP4, int4 and int8 as W4A16 and W8A16 kernels read them.

    value[r, c] = e2m1[r, c] * scale[r, c // 16] * matrix_scale[run of r]

Memory order: a program reads its rows of 64 columns as one run of bytes. A word of 16 bits holds
the codes of columns j, 16 + j, 32 + j and 48 + j. A *plane* is one of these four codes of all
words: a group of 16 columns with one scale per row, and one step of a tensor core.

The bits of a word are arranged so that few instructions turn them into bfloat16. Sign (s) and size
(e, e, m) of a code at bits 15 and 8 to 6 are the bfloat16 ``value * 2**-126``. Planes 0 to 3 have
their signs at bits 15, 12, 9 and 14, and their sizes at bits 8 to 6, 5 to 3, 2 to 0, and 13, 11
and 10. So three planes need one shift and one mask at most.

Scales are e4m3 numbers, not negative, and are kept as five bits of exponent and three of mantissa,
without denormals, so that a scale's byte at bits 11 to 4 with 0x7000 is the bfloat16
``scale * 2**118``. An e2m1 number times an e4m3 scale has at most six significant bits: it is exact
in bfloat16, here as ``value * scale * 2**-8``. The matrix scale, times 2**8, multiplies the sum. So
a product differs from that with dequantised weights in the rounding of sums alone.

Int4 has the same order, with four plain bits a number, and the scales of
engine/model/int4_experts.py. Words of the type uint16 are int4. ``128 + number`` is the bfloat16
0x4300 | number; less 128 and the zero point it is exact, and its product with the scale is the
bfloat16 nearest to the value. Words of the type int32 are int8 (engine/model/int8_experts.py):
``2**23 + byte`` is the float32 0x4b000000 | byte.

References: engine/quantized/nvfp4.py, engine/quantized/integers.py; tests:
tests/kernels/experts/test_triton_nvfp4.py, tests/kernels/experts/test_triton_integers.py.
"""

import torch
import triton
import triton.language as tl

from engine.kernels.triton_dot import INTERPRETED, dot
from engine.kernels.triton_overlap import overlap, wait_for_inputs
from engine.model.matrix import Matrix
from engine.model.packed_experts import PackedExperts

GROUP = tl.constexpr(16)
COLUMNS = tl.constexpr(64)
"""Columns that four planes of words hold."""
WIDENED_ROWS = 32
"""Rows that a program dequantises."""
WIDENED_STAGES = 4
"""Rounds in flight meanwhile."""


@triton.jit
def _scale_pairs(b_scales):
    """Scales of planes 0 and 2, and of 1 and 3, as two bfloat16 in 32 bits each."""
    b_even = ((b_scales << 4) & 0x0FF00FF0) | 0x70007000
    b_odd = ((b_scales >> 4) & 0x0FF00FF0) | 0x70007000
    return b_even, b_odd


@triton.jit
def _number(b_bits):
    """The float32 of the low 16 bits as a bfloat16."""
    return (b_bits << 16).to(tl.float32, bitcast=True)


@triton.jit
def _byte(b_bits):
    """The lowest byte less 128, in float32."""
    return ((b_bits & 0xFF) | 0x4B000000).to(tl.float32, bitcast=True) - (2.0**23 + 128)


@triton.jit
def unpacked(b_words, b_scales, DTYPE: tl.constexpr):
    """The four planes of words [rows, 16] with scales int32 [rows, 1], without their matrix scale:
    in NVFP4 (int16), times 2**-8, in int4 (uint16), or in int8 (int32)."""
    if b_words.dtype == tl.uint16:
        b_0, b_1, b_2, b_3 = _unpacked_int4(b_words, b_scales, DTYPE)
    elif b_words.dtype == tl.int32:
        b_scale = b_scales.to(tl.float32, bitcast=True)
        b_0 = (_byte(b_words) * b_scale).to(DTYPE)
        b_1 = (_byte(b_words >> 8) * b_scale).to(DTYPE)
        b_2 = (_byte(b_words >> 16) * b_scale).to(DTYPE)
        b_3 = (_byte(b_words >> 24) * b_scale).to(DTYPE)
    else:
        b_0, b_1, b_2, b_3 = _unpacked_nvfp4(b_words, b_scales, DTYPE)
    return b_0, b_1, b_2, b_3


@triton.jit
def _unpacked_nvfp4(b_words, b_scales, DTYPE: tl.constexpr):
    b_even, b_odd = _scale_pairs(b_scales)
    if INTERPRETED:
        b_w = b_words.to(tl.int32)
        b_3 = ((b_w << 1) & 0x8000) | ((b_w >> 5) & 0x0100) | ((b_w >> 4) & 0x00C0)
        b_0 = (_number(b_w & 0x81C0) * _number(b_even & 0xFFFF)).to(DTYPE)
        b_1 = (_number((b_w << 3) & 0x81C0) * _number(b_odd & 0xFFFF)).to(DTYPE)
        b_2 = (_number((b_w << 6) & 0x81C0) * _number(b_even >> 16)).to(DTYPE)
        b_3 = (_number(b_3) * _number(b_odd >> 16)).to(DTYPE)
    else:
        tl.static_assert(tl.bfloat16 == DTYPE)
        # Two words at a time; 0xea is (a & b) | c. For the products see triton_fp8.widened.
        b_0, b_1, b_2, b_3 = tl.inline_asm_elementwise(
            """{
            .reg .b16 lo, hi;
            .reg .b32 v, u, s, zero;
            mov.b32 zero, 0x80008000;
            mov.b32 {lo, hi}, $5;
            and.b32 v, $4, 0x81c081c0;
            mov.b32 s, {lo, lo};
            fma.rn.bf16x2 $0, v, s, zero;
            shl.b32 v, $4, 6;
            and.b32 v, v, 0x81c081c0;
            mov.b32 s, {hi, hi};
            fma.rn.bf16x2 $2, v, s, zero;
            mov.b32 {lo, hi}, $7;
            shl.b32 v, $4, 3;
            and.b32 v, v, 0x81c081c0;
            mov.b32 s, {lo, lo};
            fma.rn.bf16x2 $1, v, s, zero;
            shr.u32 v, $4, 4;
            and.b32 v, v, 0x00c000c0;
            shr.u32 u, $4, 5;
            lop3.b32 v, u, 0x01000100, v, 0xea;
            shl.b32 u, $4, 1;
            lop3.b32 v, u, 0x80008000, v, 0xea;
            mov.b32 s, {hi, hi};
            fma.rn.bf16x2 $3, v, s, zero;
            }""",
            "=&r,=&r,=&r,=&r,r,r,r,r,r",
            [b_words, b_even, b_odd],
            dtype=(tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16),
            is_pure=True,
            pack=2,
        )
    return b_0, b_1, b_2, b_3


@triton.jit
def _unpacked_int4(b_words, b_scales, DTYPE: tl.constexpr):
    b_scale = (b_scales & 0x0FFF0FFF) | 0x30003000
    b_zero = ((b_scales >> 12) & 0x000F000F) | 0x43004300  # 128 + zero point
    if INTERPRETED:
        b_w = b_words.to(tl.int32)
        s_low, s_high = _number(b_scale & 0xFFFF), _number(b_scale >> 16)
        z_low, z_high = _number(b_zero & 0xFFFF), _number(b_zero >> 16)
        b_0 = ((_number((b_w & 0xF) | 0x4300) - z_low) * s_low).to(DTYPE)
        b_1 = ((_number(((b_w >> 4) & 0xF) | 0x4300) - z_low) * s_low).to(DTYPE)
        b_2 = ((_number(((b_w >> 8) & 0xF) | 0x4300) - z_high) * s_high).to(DTYPE)
        b_3 = ((_number((b_w >> 12) | 0x4300) - z_high) * s_high).to(DTYPE)
    else:
        tl.static_assert(tl.bfloat16 == DTYPE)
        # Two words at a time; 0xea is (a & b) | c.
        b_0, b_1, b_2, b_3 = tl.inline_asm_elementwise(
            """{
            .reg .b16 lo, hi;
            .reg .b32 v, s, z, minus, none;
            mov.b32 minus, 0xbf80bf80;
            mov.b32 none, 0x80008000;
            mov.b32 {lo, hi}, $5;
            mov.b32 s, {lo, lo};
            mov.b32 {lo, hi}, $7;
            mov.b32 z, {lo, lo};
            lop3.b32 v, $4, 0x000f000f, 0x43004300, 0xea;
            fma.rn.bf16x2 v, z, minus, v;
            fma.rn.bf16x2 $0, v, s, none;
            shr.u32 v, $4, 4;
            lop3.b32 v, v, 0x000f000f, 0x43004300, 0xea;
            fma.rn.bf16x2 v, z, minus, v;
            fma.rn.bf16x2 $1, v, s, none;
            mov.b32 z, {hi, hi};
            mov.b32 {lo, hi}, $5;
            mov.b32 s, {hi, hi};
            shr.u32 v, $4, 8;
            lop3.b32 v, v, 0x000f000f, 0x43004300, 0xea;
            fma.rn.bf16x2 v, z, minus, v;
            fma.rn.bf16x2 $2, v, s, none;
            shr.u32 v, $4, 12;
            lop3.b32 v, v, 0x000f000f, 0x43004300, 0xea;
            fma.rn.bf16x2 v, z, minus, v;
            fma.rn.bf16x2 $3, v, s, none;
            }""",
            "=&r,=&r,=&r,=&r,r,r,r,r,r",
            [b_words, b_scale, b_zero],
            dtype=(tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16),
            is_pure=True,
            pack=2,
        )
    return b_0, b_1, b_2, b_3


@triton.jit
def zero_sums(TOKENS: tl.constexpr, ROWS: tl.constexpr, WEIGHTS_FIRST: tl.constexpr):
    """Zeros in the shape of ``add_nvfp4``'s sums."""
    if WEIGHTS_FIRST:
        b_sum = tl.zeros((ROWS, TOKENS), tl.float32)
    else:
        b_sum = tl.zeros((TOKENS, ROWS), tl.float32)
    return b_sum


@triton.jit
def add_nvfp4(b_sum, b_x0, b_x1, b_x2, b_x3, p_words, p_scales, WEIGHTS_FIRST: tl.constexpr):
    """``b_sum`` [tokens, rows] plus inputs [tokens, 16] of the four planes times weights.

    ``p_words`` [rows, 16] and ``p_scales`` [rows, 1] are the pointers of 64 columns.
    WEIGHTS_FIRST: the sum is [rows, tokens]."""
    b_0, b_1, b_2, b_3 = unpacked(tl.load(p_words), tl.load(p_scales), b_x0.dtype)
    if WEIGHTS_FIRST:
        b_sum = dot(b_0, tl.trans(b_x0), b_sum)
        b_sum = dot(b_1, tl.trans(b_x1), b_sum)
        b_sum = dot(b_2, tl.trans(b_x2), b_sum)
        b_sum = dot(b_3, tl.trans(b_x3), b_sum)
    else:
        b_sum = dot(b_x0, tl.trans(b_0), b_sum)
        b_sum = dot(b_x1, tl.trans(b_1), b_sum)
        b_sum = dot(b_x2, tl.trans(b_2), b_sum)
        b_sum = dot(b_x3, tl.trans(b_3), b_sum)
    return b_sum


@triton.jit
def packed_sum(
    p_rows,
    valid,
    p_words,
    p_scales,
    TOKENS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCKS: tl.constexpr,
    STAGES: tl.constexpr,
    WEIGHTS_FIRST: tl.constexpr,
):
    """The sum over BLOCKS blocks of columns in the shape of ``add_nvfp4``'s sums, without matrix
    scales. ``p_rows`` [TOKENS, 16] are the inputs' pointers, ``p_words`` [BLOCK_N, 16] and
    ``p_scales`` [BLOCK_N, 1] the weights', of the first block; ROWS: all rows of the weights."""
    b_sum = zero_sums(TOKENS, BLOCK_N, WEIGHTS_FIRST)
    for _ in tl.range(0, BLOCKS, num_stages=STAGES):
        b_x0 = tl.load(p_rows, mask=valid, other=0.0)
        b_x1 = tl.load(p_rows + GROUP, mask=valid, other=0.0)
        b_x2 = tl.load(p_rows + 2 * GROUP, mask=valid, other=0.0)
        b_x3 = tl.load(p_rows + 3 * GROUP, mask=valid, other=0.0)
        b_sum = add_nvfp4(b_sum, b_x0, b_x1, b_x2, b_x3, p_words, p_scales, WEIGHTS_FIRST)
        p_rows += COLUMNS
        p_words += ROWS * GROUP
        p_scales += ROWS
    return b_sum


@triton.jit
def _widen_kernel(
    p_words,
    p_scales,
    p_matrix_scales,
    p_out,
    first,
    stride_out,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    RUNS: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
    PDL: tl.constexpr,
):
    """Dequantise BLOCK rows of one expert; the result begins with the row ``first``."""
    expert = tl.program_id(1).to(tl.int64)
    rows = first + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[:, None]
    o_k = tl.arange(0, GROUP)[None, :]
    p_scales += expert * (K // COLUMNS * ROWS) + rows
    p_words += (expert * (K // COLUMNS * ROWS) + rows) * GROUP + o_k
    p_out += expert * stride_out + (rows - first).to(tl.int64) * K + o_k
    wait_for_inputs(PDL)
    b_scale = tl.load(p_matrix_scales + expert * RUNS + rows // (ROWS // RUNS))
    DTYPE: tl.constexpr = p_out.dtype.element_ty
    for _ in tl.range(0, K // COLUMNS, num_stages=STAGES):
        b_0, b_1, b_2, b_3 = unpacked(tl.load(p_words), tl.load(p_scales), DTYPE)
        tl.store(p_out, (b_0.to(tl.float32) * b_scale).to(DTYPE))
        tl.store(p_out + GROUP, (b_1.to(tl.float32) * b_scale).to(DTYPE))
        tl.store(p_out + 2 * GROUP, (b_2.to(tl.float32) * b_scale).to(DTYPE))
        tl.store(p_out + 3 * GROUP, (b_3.to(tl.float32) * b_scale).to(DTYPE))
        p_words += ROWS * GROUP
        p_scales += ROWS
        p_out += COLUMNS


def widen(w: PackedExperts, out: torch.Tensor, first: int = 0) -> None:
    """Dequantise rows of ``w`` [experts, rows, k] from ``first`` on to ``out`` [experts, some rows,
    k], contiguous in each expert."""
    (num, rows, k), some = w.shape, out.shape[1]
    assert out.shape == (num, some, k)
    assert out.stride()[1:] == (k, 1)
    assert len(set(w.runs)) == 1, w.runs
    assert first % WIDENED_ROWS == some % WIDENED_ROWS == 0, (first, some)
    _widen_kernel[(some // WIDENED_ROWS, num)](
        w.words, w.scales, w.matrix_scales, out, first, out.stride(0),
        K=k, ROWS=rows, RUNS=len(w.runs), BLOCK=WIDENED_ROWS, STAGES=WIDENED_STAGES,
        num_warps=4, **overlap(out),
    )  # fmt: skip


def widened_part(w: PackedExperts, first: int, num_rows: int, dtype: torch.dtype) -> torch.Tensor:
    """Rows of a matrix [1, rows, k] in NVFP4 as [num_rows, k]."""
    out = torch.empty((1, num_rows, w.shape[2]), dtype=dtype, device=w.words.device)
    widen(w, out, first)
    return out[0]


def widened_experts(w: PackedExperts, dtype: torch.dtype) -> Matrix:
    """Dequantise experts, for a product that is so large that reading its weights twice costs
    little."""
    out = torch.empty(w.shape, dtype=dtype, device=w.words.device)
    widen(w, out)
    return Matrix.of(out)
