# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Linear layers whose time is the reading of their weights: a few tokens at a time.

    y[t, n] = Σ_k x[t, k] w[n, k]

A program streams a band of rows of ``w`` past all tokens; the products run on the tensor cores,
tokens padded to 16. ``splits`` cuts k among programs, for layers with too few rows to fill the
GPU; the slices come back unreduced, for the consumer to add in order. How a token's sum is formed
depends on the layer's shape alone, never on the other tokens.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from engine.kernels.triton_dot import dot
from engine.kernels.triton_overlap import overlap, prefetch, wait_for_inputs


@dataclass(frozen=True)
class Tiles:
    """rows and k of a tile of the weights; tiles in flight; where the tokens stand in the dot."""

    rows: int
    k: int
    stages: int
    warps: int
    weights_first: bool
    """dot(w, xᵀ) on 64-row wgmma; else dot(x, wᵀ)."""
    prefetched: int = 2
    """Tiles brought towards the L2 cache while the predecessor finishes."""


@triton.jit
def rows_product(
    p_x,
    p_w,
    in_batch,
    K: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    WEIGHTS_FIRST: tl.constexpr,
):
    """[BLOCK_T, BLOCK_N] float32: the rows at ``p_x`` [BLOCK_T, 1] times those at ``p_w``."""
    o_k = tl.arange(0, BLOCK_K)
    if WEIGHTS_FIRST:
        b_y = tl.zeros((BLOCK_N, BLOCK_T), tl.float32)
    else:
        b_y = tl.zeros((BLOCK_T, BLOCK_N), tl.float32)
    for k in tl.range(0, K, BLOCK_K):
        b_w = tl.load(p_w + (k + o_k)[None, :])
        b_x = tl.load(p_x + (k + o_k)[None, :], mask=in_batch, other=0.0)
        if WEIGHTS_FIRST:  # noqa: SIM108
            b_y = dot(b_w, tl.trans(b_x), b_y)
        else:
            b_y = dot(b_x, tl.trans(b_w), b_y)
    if WEIGHTS_FIRST:
        b_y = tl.trans(b_y)
    return b_y


@triton.jit(do_not_specialize=["num_tokens"])
def _linear_kernel(
    p_x,
    p_w,
    p_y,
    num_tokens,
    num_rows,
    stride_x,
    stride_split,
    stride_y,
    K: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    WEIGHTS_FIRST: tl.constexpr,
    PREFETCHED: tl.constexpr,
    PDL: tl.constexpr,
):
    split = tl.program_id(1)
    K_SPLIT: tl.constexpr = K // SPLITS
    rows = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    tokens = tl.program_id(2) * BLOCK_T + tl.arange(0, BLOCK_T)
    # Past the last row read the last one again: no mask on the stream of weights.
    p_w += tl.minimum(rows, num_rows - 1).to(tl.int64)[:, None] * K + split * K_SPLIT
    p_x += tokens[:, None] * stride_x + split * K_SPLIT
    in_batch = tokens[:, None] < num_tokens
    prefetch(p_w, PREFETCHED * BLOCK_K * 2, PDL)
    wait_for_inputs(PDL)
    b_y = rows_product(p_x, p_w, in_batch, K_SPLIT, BLOCK_T, BLOCK_N, BLOCK_K, WEIGHTS_FIRST)
    p_y += split.to(tl.int64) * stride_split + tokens[:, None] * stride_y + rows[None, :]
    mask = in_batch & (rows[None, :] < num_rows)
    tl.store(p_y, b_y.to(p_y.dtype.element_ty), mask=mask)


def stream_linear(
    x: torch.Tensor, w: torch.Tensor, splits: int, tiles: Tiles, out: torch.Tensor | None = None
) -> torch.Tensor:
    """``x @ w.T`` as [splits, tokens, rows]: float32 slices, or ``x``'s dtype if splits is 1.

    x [tokens, k], w [rows, k], rows contiguous; k a multiple of ``splits * tiles.k``. ``out``
    [tokens, rows], rows contiguous, receives the product in its own dtype; splits is then 1.
    """
    (num_tokens, k), num_rows = x.shape, w.shape[0]
    assert w.shape == (num_rows, k)
    assert w.is_contiguous()
    assert x.stride(1) == 1
    assert x.dtype == w.dtype
    assert k % (splits * tiles.k) == 0
    if out is None:
        dtype = x.dtype if splits == 1 else torch.float32
        y = aligned_rows(splits, num_tokens, num_rows, dtype=dtype, device=x.device)
    else:
        assert splits == 1
        assert out.shape == (num_tokens, num_rows)
        assert out.stride(1) == 1
        y = out.unsqueeze(0)
    block_t = min(max(16, triton.next_power_of_2(num_tokens)), 64)
    grid = (triton.cdiv(num_rows, tiles.rows), splits, triton.cdiv(num_tokens, block_t))
    _linear_kernel[grid](
        x,
        w,
        y,
        num_tokens,
        num_rows,
        x.stride(0),
        y.stride(0),
        y.stride(1),
        K=k,
        SPLITS=splits,
        BLOCK_T=block_t,
        BLOCK_N=tiles.rows,
        BLOCK_K=tiles.k,
        WEIGHTS_FIRST=tiles.weights_first,
        PREFETCHED=min(tiles.prefetched, k // splits // tiles.k),
        num_warps=tiles.warps,
        num_stages=tiles.stages,
        **overlap(x),
    )
    return y


def aligned(length: int) -> int:
    """Elements from row to row: kernels are compiled anew for rows that are aligned otherwise."""
    return -(-length // 16) * 16


def aligned_rows(*shape: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Memory whose rows are aligned, whatever their length, and contiguous."""
    *others, length = shape
    return torch.empty((*others, aligned(length)), dtype=dtype, device=device)[..., :length]


def linear_parts(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """``x @ w.T`` as slices to be added: [parts, tokens, rows], one part beyond 64 tokens."""
    if x.shape[0] > MAX_STREAMED:
        return F.linear(x, w).unsqueeze(0)
    splits = 1 if w.shape[0] > MANY_ROWS else 4
    return stream_linear(x, w, splits, tiles_of(x.shape[0], w.shape[0], splits))


def linear(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """``x @ w.T`` [tokens, rows] in ``x``'s dtype."""
    if x.shape[0] > MAX_STREAMED:
        return F.linear(x, w)
    return stream_linear(x, w, 1, tiles_of(x.shape[0], w.shape[0], 1))[0]


def float_linear(x: torch.Tensor, w: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """``x @ w.T`` [tokens, rows] as the float32 sums that they are; in ``out`` where given."""
    (num_tokens, _), num_rows = x.shape, w.shape[0]
    if out is None:
        out = aligned_rows(num_tokens, num_rows, dtype=torch.float32, device=x.device)
    if num_tokens > MAX_STREAMED:
        return torch.mm(x, w.t(), out_dtype=torch.float32, out=out)
    stream_linear(x, w, 1, tiles_of(num_tokens, num_rows, 1), out)
    return out


MAX_STREAMED = 64
"""Tokens from which on cuBLAS is as fast."""

MANY_ROWS = 8192
"""Rows that fill 132 multiprocessors without a split of k."""


def tiles_of(num_tokens: int, num_rows: int, splits: int) -> Tiles:
    """As measured on an H200; any of them gives the same bits."""
    if splits > 1:
        return Tiles(64, 128, 6, 4, True)
    if num_tokens <= 32:
        return Tiles(64, 128, 4, 4, True) if num_rows > 65536 else Tiles(64, 64, 6, 4, True)
    return Tiles(64, 64, 6, 4, True) if num_rows > 65536 else Tiles(128, 64, 5, 4, True)
