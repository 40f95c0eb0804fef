# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""A band of rows of a matrix times a few tokens, for kernels that read the weights once.

The products run on the tensor cores, tokens padded to 16. A matrix has rows in FP8 or NVFP4, and
plain ones (engine/model/matrix.py); a band is of one kind. In kernels ``p_fp8`` and ``p_scales``
are the words and scales of rows in NVFP4 if there are any (PACKED), and ``p_s`` their matrix
scales.

Reference: x @ Matrix.dequantised().T; test: tests/kernels/test_fp8.py, test_shared_functions.py.
"""

from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl

from engine.gpu_arch import SMALL_SHARED_BYTES, has_small_shared_memory
from engine.kernels.dense.triton_nvfp4_rows import packed_product, prefetch_packed
from engine.kernels.formats.triton_fp8 import BLOCK_K as FP8_K
from engine.kernels.formats.triton_fp8 import add_product
from engine.kernels.formats.triton_split import PARTS, sum_of_parts
from engine.kernels.triton_arch import arch_of
from engine.kernels.triton_dot import dot
from engine.kernels.triton_overlap import prefetch
from engine.model.matrix import Matrix

MOST_FP8_IN_SMALL = 4
"""Rounds in flight of rows in FP8 where shared memory is small."""
PACKED_ROUNDS = tl.constexpr(4)
"""Blocks of columns of rows in NVFP4 that are prefetched into the L2 cache."""


@dataclass(frozen=True)
class Tiles:
    """Tile sizes: rows and k of a tile of the weights, tiles in flight, and the order of the
    dot."""

    rows: int
    k: int
    stages: int
    warps: int
    weights_first: bool
    """True: dot(w, xᵀ) on 64-row wgmma; False: dot(x, wᵀ)."""
    prefetched: int = 2
    """Tiles prefetched into the L2 cache while the predecessor finishes."""
    fp8_stages: int = 3
    """Rounds in flight of rows in FP8."""
    fp8_unrolled: int = 1
    """Tiles per round, each 128 columns wide: their products do not wait for one another."""

    def arguments(self, w: Matrix, num_columns: int, block_t: int) -> dict[str, Any]:
        """Launch arguments of a kernel that multiplies ``block_t`` tokens at a time by
        ``num_columns`` of each row of ``w``."""
        k = w.shape[1]
        if w.num_fp8:
            assert w.group == FP8_K.value, w.group
            assert num_columns % FP8_K.value == 0, num_columns
            assert FP8_K.value % self.rows == 0, "a tile's rows in FP8 share their scales"
        assert k % num_columns == num_columns % self.k == 0, (k, num_columns, self)
        assert w.num_quantised % self.rows == 0, (w.shape, self)
        assert all(each.is_contiguous() for each in (w.fp8, w.scales, w.plain))
        stages, fp8_stages = self.stages, self.fp8_stages
        if has_small_shared_memory(arch_of(w.plain)):  # all tiles in flight but one lie in it
            tile_bytes = (self.rows + block_t) * self.k * w.plain.element_size()
            stages = min(stages, 1 + SMALL_SHARED_BYTES // tile_bytes)
            fp8_stages = min(fp8_stages, MOST_FP8_IN_SMALL)
        return {
            "FP8_ROWS": w.num_quantised,
            "PACKED": w.packed is not None,
            "HAS_PLAIN": w.plain.shape[0] > 0,
            "K": k,
            "BLOCK_N": self.rows,
            "BLOCK_K": self.k,
            "STAGES": stages,
            "FP8_STAGES": fp8_stages,
            "WEIGHTS_FIRST": self.weights_first,
            "FP8_UNROLLED": self.fp8_unrolled,
            "PREFETCHED": min(self.prefetched * self.k, num_columns),
            "num_warps": self.warps,
            "num_stages": stages,
        }


@triton.jit
def _stream(
    p_x,
    stride_x,
    first,
    num_tokens,
    p_w,
    p_scales,
    K: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
    UNROLLED: tl.constexpr,
    WEIGHTS_FIRST: tl.constexpr,
    IN_FP8: tl.constexpr,
):
    """Multiply the tokens from ``first`` on by the rows at ``p_w`` -> [BLOCK_T, BLOCK_N]
    float32."""
    tokens = first + tl.arange(0, BLOCK_T)
    in_batch = tokens[:, None] < num_tokens
    p_x += tokens[:, None] * stride_x
    o_k = tl.arange(0, BLOCK_K)
    if WEIGHTS_FIRST:
        b_y = tl.zeros((BLOCK_N, BLOCK_T), tl.float32)
    else:
        b_y = tl.zeros((BLOCK_T, BLOCK_N), tl.float32)
    for k in tl.range(0, K, BLOCK_K, num_stages=STAGES, loop_unroll_factor=UNROLLED):
        b_w = tl.load(p_w + (k + o_k)[None, :])
        b_x = tl.load(p_x + (k + o_k)[None, :], mask=in_batch, other=0.0)
        b_y = add_product(b_y, b_x, b_w, p_scales + k // BLOCK_K, IN_FP8, WEIGHTS_FIRST)
    if WEIGHTS_FIRST:
        b_y = tl.trans(b_y)
    return b_y


@triton.jit
def _stream_split(
    p_q,
    p_s,
    num_tokens,
    p_w,
    p_scales,
    K: tl.constexpr,
    K_SPLIT: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr,
    GROUPED: tl.constexpr,
):
    """Multiply the split of the first tokens by rows in FP8 -> [BLOCK_T, BLOCK_N] float32."""
    R: tl.constexpr = BLOCK_T * PARTS
    o_q = tl.arange(0, R)
    in_batch = o_q < num_tokens * PARTS
    o_k = tl.arange(0, FP8_K)
    p_q += o_q[:, None] * K
    p_s += o_q // PARTS * (K // FP8_K if GROUPED else 1)
    b_s = tl.load(p_s, mask=in_batch, other=0.0)
    scale = tl.load(p_scales)
    b_y = tl.zeros((BLOCK_N, R), tl.float32)
    for k in tl.range(0, K_SPLIT, FP8_K, num_stages=STAGES):
        b_w = tl.load(p_w + (k + o_k)[None, :])
        b_q = tl.load(p_q + (k + o_k)[None, :], mask=in_batch[:, None], other=0.0)
        # Read a round ahead: its use would wait for it.
        following = tl.minimum(k + FP8_K, K_SPLIT - FP8_K) // FP8_K
        next_scale = tl.load(p_scales + following)
        b_part = dot(b_w, tl.trans(b_q), tl.zeros((BLOCK_N, R), tl.float32))
        if GROUPED:
            b_next = tl.load(p_s + following, mask=in_batch, other=0.0)
            b_y += b_part * (b_s * scale)[None, :]
            b_s = b_next
        else:
            b_y += b_part * scale
        scale = next_scale
    if not GROUPED:
        b_y *= b_s[None, :]
    return tl.trans(sum_of_parts(b_y, BLOCK_N, BLOCK_T))


@triton.jit
def band_of(program, num_programs, FP8_ROWS: tl.constexpr, BLOCK_N: tl.constexpr):
    """The first row of a program's band. Plain rows, which take twice the bytes, come first."""
    return (program + FP8_ROWS // BLOCK_N) % num_programs * BLOCK_N


@triton.jit
def prefetch_rows(
    p_fp8,
    p_scales,
    p_w,
    band,
    num_rows,
    FP8_ROWS: tl.constexpr,
    PACKED: tl.constexpr,
    HAS_PLAIN: tl.constexpr,
    K: tl.constexpr,
    BLOCK_N: tl.constexpr,
    COLUMNS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Prefetch the first ``COLUMNS`` of a band of rows, for ``rows_product`` of the same
    arguments."""
    rows = band + tl.arange(0, BLOCK_N)
    p_w += (tl.minimum(rows, num_rows - 1) - FP8_ROWS).to(tl.int64)[:, None] * K
    if FP8_ROWS > 0 and (not HAS_PLAIN or band < FP8_ROWS):
        if PACKED:
            prefetch_packed(p_fp8, p_scales, band, FP8_ROWS, BLOCK_N, PACKED_ROUNDS, PDL)
        else:
            prefetch(p_fp8 + rows.to(tl.int64)[:, None] * K, COLUMNS, PDL)
    else:
        prefetch(p_w, COLUMNS * 2, PDL)


@triton.jit
def rows_product(
    p_x,
    p_q,
    p_s,
    stride_x,
    first,
    num_tokens,
    p_fp8,
    p_scales,
    p_w,
    band,
    num_rows,
    FP8_ROWS: tl.constexpr,
    PACKED: tl.constexpr,
    HAS_PLAIN: tl.constexpr,
    K: tl.constexpr,
    K_SPLIT: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
    FP8_STAGES: tl.constexpr,
    WEIGHTS_FIRST: tl.constexpr,
    FP8_UNROLLED: tl.constexpr,
    IS_SPLIT: tl.constexpr,
    GROUPED: tl.constexpr,
):
    """Multiply K_SPLIT columns of the tokens from ``first`` on by a matrix's rows from ``band`` on
    -> [BLOCK_T, BLOCK_N] float32. The matrix begins at ``p_fp8``, ``p_scales``, ``p_w``. IS_SPLIT:
    rows in FP8 are multiplied by ``p_q`` and ``p_s``, and ``first`` is 0. GROUPED: ``p_s`` has a
    scale per FP8_K columns."""
    rows = band + tl.arange(0, BLOCK_N)
    # Past the last row, read the last row again: this needs no mask on the loads of weights.
    p_w += (tl.minimum(rows, num_rows - 1) - FP8_ROWS).to(tl.int64)[:, None] * K
    if FP8_ROWS > 0 and (not HAS_PLAIN or band < FP8_ROWS):
        p_rows = p_fp8 + rows.to(tl.int64)[:, None] * K
        p_row_scales = p_scales + band // FP8_K * (K // FP8_K)
        if PACKED:
            b_y = packed_product(
                p_x, stride_x, first, num_tokens, p_fp8, p_scales, p_s, band,
                FP8_ROWS, K_SPLIT, BLOCK_T, BLOCK_N, FP8_STAGES, WEIGHTS_FIRST,
            )  # fmt: skip
        elif IS_SPLIT:
            b_y = _stream_split(
                p_q, p_s, num_tokens, p_rows, p_row_scales,
                K, K_SPLIT, BLOCK_T, BLOCK_N, FP8_STAGES, GROUPED,
            )  # fmt: skip
        else:
            b_y = _stream(
                p_x, stride_x, first, num_tokens, p_rows, p_row_scales,
                K_SPLIT, BLOCK_T, BLOCK_N, FP8_K, FP8_STAGES, FP8_UNROLLED, False, True,
            )  # fmt: skip
    else:
        b_y = _stream(
            p_x, stride_x, first, num_tokens, p_w, p_scales,
            K_SPLIT, BLOCK_T, BLOCK_N, BLOCK_K, STAGES, 1, WEIGHTS_FIRST, False,
        )  # fmt: skip
    return b_y
