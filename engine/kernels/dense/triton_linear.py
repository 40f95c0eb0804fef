# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Linear layers of a few tokens, whose time is spent on reading the weights.

    y[t, n] = Σ_k x[t, k] w[n, k]

A program streams a band of rows of ``w`` past all tokens; the products run on the tensor cores,
tokens padded to 16. ``splits`` cuts k among programs, for layers with too few rows to fill the
GPU; the slices are returned unreduced, for the consumer to add in order. The order of a token's sum
depends only on the layer's shape, never on the other tokens.

Reference: x @ Matrix.dequantised().T; test: tests/kernels/experts/test_triton_moe.py, test_fp8.py.
"""

from dataclasses import replace
from math import gcd

import torch
import triton
import triton.language as tl

from engine.gpu_arch import has_fp8
from engine.kernels.dense.triton_large_linear import large_linear
from engine.kernels.dense.triton_rows import Tiles, band_of, prefetch_rows, rows_product
from engine.kernels.formats.triton_fp8 import BLOCK_K as FP8_K
from engine.kernels.formats.triton_fp8 import widened_rows
from engine.kernels.formats.triton_nvfp4 import COLUMNS as PACKED_K
from engine.kernels.formats.triton_nvfp4 import widened_part
from engine.kernels.formats.triton_quantise import Prepared, Quantised
from engine.kernels.formats.triton_split import Split, split_rows
from engine.kernels.interface import Activation
from engine.kernels.triton_arch import arch_of
from engine.kernels.triton_overlap import overlap, wait_for_inputs
from engine.model.matrix import Matrix


@triton.jit(do_not_specialize=["num_tokens"])
def _linear_kernel(
    p_x,
    p_q,
    p_s,
    p_fp8,
    p_scales,
    p_w,
    p_y,
    num_tokens,
    num_rows,
    stride_x,
    stride_split,
    stride_y,
    FP8_ROWS: tl.constexpr,
    PACKED: tl.constexpr,
    HAS_PLAIN: tl.constexpr,
    K: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
    FP8_STAGES: tl.constexpr,
    WEIGHTS_FIRST: tl.constexpr,
    FP8_UNROLLED: tl.constexpr,
    IS_SPLIT: tl.constexpr,
    GROUPED: tl.constexpr,
    PREFETCHED: tl.constexpr,
    PDL: tl.constexpr,
):
    # Programs of one band run side by side: its weights are read from memory once.
    first = tl.program_id(0) * BLOCK_T
    band = band_of(tl.program_id(1), tl.num_programs(1), FP8_ROWS, BLOCK_N)
    split = tl.program_id(2)
    K_SPLIT: tl.constexpr = K // SPLITS
    rows = band + tl.arange(0, BLOCK_N)
    tokens = first + tl.arange(0, BLOCK_T)
    p_x += split * K_SPLIT
    p_q += split * K_SPLIT
    p_w += split * K_SPLIT
    if PACKED:
        p_fp8 += split * (K_SPLIT * FP8_ROWS // 4)
        p_scales += split * (K_SPLIT // PACKED_K * FP8_ROWS)
    else:
        p_fp8 += split * K_SPLIT
        p_scales += split * (K_SPLIT // FP8_K)
    if GROUPED:
        p_s += split * (K_SPLIT // FP8_K)
    in_batch = tokens[:, None] < num_tokens
    prefetch_rows(
        p_fp8, p_scales, p_w, band, num_rows,
        FP8_ROWS, PACKED, HAS_PLAIN, K, BLOCK_N, PREFETCHED, PDL,
    )  # fmt: skip
    wait_for_inputs(PDL)
    b_y = rows_product(
        p_x, p_q, p_s, stride_x, first, num_tokens, p_fp8, p_scales, p_w, band, num_rows,
        FP8_ROWS, PACKED, HAS_PLAIN, K, K_SPLIT, BLOCK_T, BLOCK_N, BLOCK_K, STAGES, FP8_STAGES,
        WEIGHTS_FIRST, FP8_UNROLLED, IS_SPLIT, GROUPED,
    )  # fmt: skip
    p_y += split.to(tl.int64) * stride_split + tokens[:, None] * stride_y + rows[None, :]
    mask = in_batch & (rows[None, :] < num_rows)
    tl.store(p_y, b_y.to(p_y.dtype.element_ty), mask=mask)


def stream_linear(
    x: torch.Tensor,
    w: Matrix,
    splits: int,
    tiles: Tiles,
    out: torch.Tensor | None = None,
    split: Split | None = None,
) -> torch.Tensor:
    """``x @ w.T`` as [splits, tokens, rows]: float32 slices, or ``x``'s dtype if splits is 1.

    x [tokens, k], w [rows, k], rows contiguous; k a multiple of ``splits * tiles.k``, and of 128
    where rows are in FP8. ``out`` [tokens, rows], rows contiguous, receives the product in its own
    dtype, of the first rows if it has fewer; splits is then 1. ``split``: ``x`` split in two, at
    most 64 tokens, with one scale per token or per 128 columns: rows in FP8 are multiplied with it
    on FP8 tensor cores.
    """
    (num_tokens, k), num_rows = x.shape, w.shape[0]
    assert w.shape == (num_rows, k)
    assert x.stride(1) == 1
    assert x.dtype == w.plain.dtype
    if out is None:
        dtype = x.dtype if splits == 1 else torch.float32
        y = aligned_rows(splits, num_tokens, num_rows, dtype=dtype, device=x.device)
    else:
        assert splits == 1
        num_rows = out.shape[1]
        assert out.shape[0] == num_tokens
        assert num_rows <= w.shape[0]
        assert out.stride(1) == 1
        y = out.unsqueeze(0)
    largest = MAX_FP8_T if w.num_fp8 and split is None else MAX_STREAMED
    block_t = min(max(16, triton.next_power_of_2(num_tokens)), largest)
    grouped = False
    if split is not None:
        assert w.num_fp8
        assert num_tokens <= block_t
        grouped = split.num_groups > 1
        assert split.is_of_rows(x, k // FP8_K.value if grouped else 1)
    grid = (triton.cdiv(num_tokens, block_t), triton.cdiv(num_rows, tiles.rows), splits)
    _linear_kernel[grid](
        x,
        *operands(x, w, split),
        y,
        num_tokens,
        num_rows,
        x.stride(0),
        y.stride(0),
        y.stride(1),
        SPLITS=splits,
        BLOCK_T=block_t,
        IS_SPLIT=split is not None,
        GROUPED=grouped,
        **tiles.arguments(w, k // splits, block_t),
        **overlap(x),
    )
    return y


def operands(x: torch.Tensor, w: Matrix, split: Split | None) -> tuple[torch.Tensor, ...]:
    """The arguments (p_q, p_s, p_fp8, p_scales, p_w) of ``rows_product``."""
    if w.packed is not None:
        assert split is None
        packed = w.packed
        return x, packed.matrix_scales, packed.words, packed.scales, w.plain
    if split is None:
        # NOTE: older GPUs refuse the type of the empty part too.
        fp8 = w.fp8 if w.num_fp8 or has_fp8(arch_of(x)) else w.plain
        return x, w.scales, fp8, w.scales, w.plain
    return split.q, split.s, w.fp8, w.scales, w.plain


def aligned(length: int) -> int:
    """Stride of rows of ``length`` elements: Triton compiles a kernel again for rows with another
    alignment."""
    return -(-length // 16) * 16


def aligned_rows(*shape: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Uninitialised memory with aligned, contiguous rows of any length."""
    *others, length = shape
    return torch.empty((*others, aligned(length)), dtype=dtype, device=device)[..., :length]


def linear_parts(x: torch.Tensor, w: Matrix, prepared: Prepared | None = None) -> torch.Tensor:
    """``x @ w.T`` as slices to be added: [parts, tokens, rows]; one part beyond 64 tokens.
    ``prepared``: ``x`` as ``prepared_of`` gives it."""
    if x.shape[0] > MAX_STREAMED:
        assert not isinstance(prepared, Split)
        return large_linear(x, w, prepared).unsqueeze(0)
    assert not isinstance(prepared, Quantised)
    splits = splits_of(w)
    tiles = tiles_of(x.shape[0], w, splits, prepared is not None)
    return stream_linear(x, w, splits, tiles, split=prepared)


def linear(x: torch.Tensor, w: Matrix, prepared: Prepared | None = None) -> torch.Tensor:
    """``x @ w.T`` [tokens, rows] in ``x``'s dtype. ``prepared``: as in ``linear_parts``."""
    if x.shape[0] > MAX_STREAMED:
        assert not isinstance(prepared, Split)
        return large_linear(x, w, prepared)
    assert not isinstance(prepared, Quantised)
    tiles = tiles_of(x.shape[0], w, 1, prepared is not None)
    return stream_linear(x, w, 1, tiles, split=prepared)[0]


def split_of(of: Activation, weight: Matrix, num_groups: int = 1) -> Split | None:
    """The split of an activation for a product with ``weight``; None in BF16 or with many tokens.
    It is the split that a norm or mixer wrote with its output, or one that is made now, with
    ``num_groups`` scales per row."""
    if not weight.num_fp8 or of.tensor.shape[0] > MAX_STREAMED:
        return None
    if of.prepared is not None:
        assert isinstance(of.prepared, Split), "another set's"
        return of.prepared
    return split_rows(of.tensor, num_groups)


def prepared_of(of: Activation, weight: Matrix, num_groups: int = 1) -> Prepared | None:
    """``split_of`` for few tokens, ``quantised_of`` for many."""
    if of.tensor.shape[0] > MAX_STREAMED:
        return quantised_of(of)
    return split_of(of, weight, num_groups)


def quantised_of(of: Activation) -> Quantised | None:
    """An activation in FP8, if a norm wrote that with its output."""
    return of.prepared if isinstance(of.prepared, Quantised) else None


def float_linear(
    x: torch.Tensor, w: Matrix, num_rows: int, out: torch.Tensor | None = None
) -> torch.Tensor:
    """``x @ w.T`` [tokens, num_rows] for the first rows of ``w``, as unrounded float32 sums;
    written to ``out`` if given. Rows of ``w`` are in FP8 all or none."""
    num_tokens = x.shape[0]
    assert not w.num_fp8 or not w.plain.shape[0]
    if out is None:
        out = aligned_rows(num_tokens, num_rows, dtype=torch.float32, device=x.device)
    assert out.shape == (num_tokens, num_rows)
    if not w.num_quantised:
        w = Matrix.of(w.plain[:num_rows])
    if num_tokens <= MAX_STREAMED:
        split = split_of(Activation(x), w)
        stream_linear(x, w, 1, tiles_of(num_tokens, w, 1, split is not None), out, split)
        return out
    if not w.num_quantised:
        return torch.mm(x, w.plain.t(), out_dtype=torch.float32, out=out)
    for first in range(0, num_rows, WIDENED_AT_ONCE):
        rows = min(WIDENED_AT_ONCE, w.shape[0] - first)
        if w.packed is None:
            values = widened_rows(w.part(first, rows))[: num_rows - first]
        else:
            values = widened_part(w.packed, first, rows, x.dtype)[: num_rows - first]
        columns = out[:, first : first + len(values)]
        torch.mm(x, values.t(), out_dtype=torch.float32, out=columns)
    return out


MAX_STREAMED = 64
"""The most tokens for which the streaming kernels are faster than cuBLAS."""

WIDENED_AT_ONCE = 1 << 15
"""Quantised rows that are dequantised at a time for float32 sums of many tokens."""

MAX_FP8_T = 32
"""The most tokens of a program if rows are in FP8. With 64, dot(x, wᵀ) would use other
instructions, which sum in another order and need the converted weights in shared memory."""

MANY_ROWS = 8192
"""Number of rows that fills 132 multiprocessors without a split of k."""

MANY_SLICES = 16384
"""Number of slices of rows from which on more programs of fewer stages are faster."""

SPLITS = 4
"""The most slices of k in layers with fewer rows."""

LEAST_K = 64
"""The number of columns of a weight is a multiple of this."""


def splits_of(w: Matrix) -> int:
    """Number of slices of k in which ``linear_parts`` multiplies by a weight: the most up to SPLITS
    whose columns are a multiple of LEAST_K."""
    if w.shape[0] > MANY_ROWS:
        return 1
    return gcd(w.shape[1] // LEAST_K, SPLITS)


def tiles_of(num_tokens: int, w: Matrix, splits: int, is_split: bool = False) -> Tiles:
    """The tiles measured best on an H200 or H100, or narrower ones where they do not divide k; all
    tiles give the same bits."""
    tiles = _best_tiles(num_tokens, w, splits, is_split)
    return tiles if w.shape[1] // splits % tiles.k == 0 else replace(tiles, k=LEAST_K)


def _best_tiles(num_tokens: int, w: Matrix, splits: int, is_split: bool) -> Tiles:
    if is_split:
        stages = 6 if num_tokens <= 32 or splits > 1 else 4
        fetches_more = splits > 1 or (num_tokens <= 4 and w.shape[0] <= 65536)
        return Tiles(64, 64, 4, 4, True, 8 if fetches_more else 2, stages)
    if w.packed is not None:
        if num_tokens > 16:
            return Tiles(64, LEAST_K, 4, 4, True, fp8_stages=4)
        rows = 64 if w.shape[0] > 65536 else 32
        return Tiles(rows, LEAST_K, 4, 2, False, fp8_stages=4 if rows == 64 else 6)
    if w.num_fp8:
        rows, k = 32 if num_tokens <= 16 else 64, 128 if splits > 1 else 64
        return Tiles(rows, k, 6, 4, True, fp8_stages=3, fp8_unrolled=2)
    num_rows = w.shape[0]
    if splits > 1:
        stages = 6 if num_rows * splits < MANY_SLICES else 3 if num_tokens > 32 else 4
        return Tiles(64, 128, stages, 4, True)
    if MANY_ROWS // 2 < num_rows <= MANY_ROWS:
        return Tiles(64, 128, 6 if num_tokens <= 32 else 4, 4, True)
    if num_tokens <= 32:
        return Tiles(64, 128, 4, 4, True) if num_rows > 65536 else Tiles(64, 64, 6, 4, True)
    return Tiles(64, 64, 6, 4, True) if num_rows > 65536 else Tiles(128, 64, 5, 4, True)
