# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Residual add, RMS norm, and the projection of the norm, of one token as one kernel.

    hidden' = bf16(hidden + Σ_p delta_p);   x = hidden' / rms(hidden') * norm;   y = x wᵀ

Every program adds and norms the whole token: with few summands that is faster than another kernel.
Its weights are in shared memory by then, because it reads them before the wait. The sums have the
order of ``add_rms_norm`` and ``linear_parts``, and so the same bits.

Reference: add_rms_norm, then linear_parts, bit for bit; test:
tests/kernels/experts/test_triton_moe.py.
"""

import torch
import triton
import triton.language as tl

from engine.kernels.dense.triton_linear import MANY_ROWS, SPLITS, aligned_rows
from engine.kernels.triton_dot import dot
from engine.kernels.triton_overlap import LOADS_FIRST, overlap, wait_for_inputs
from engine.model.matrix import Matrix

BAND = 64
"""Rows of weights per program, as in ``linear_parts``."""
TOKENS = tl.constexpr(16)
"""Tokens of the smallest tile: the first is the token, the others are zeros."""
MAX_COLUMNS = 512
"""The most columns of a program whose weights fit in shared memory beside another kernel's."""


@triton.jit
def _sum(p_hidden, p_delta, dims, stride_part, NUM_PARTS: tl.constexpr):
    b_hidden = tl.load(p_hidden + dims).to(tl.float32)
    b_delta = tl.load(p_delta + dims).to(tl.float32)
    for part in tl.static_range(1, NUM_PARTS):
        b_delta += tl.load(p_delta + part * stride_part + dims).to(tl.float32)
    return (b_hidden + b_delta).to(p_hidden.dtype.element_ty)


@triton.jit
def _norm_linear_kernel(
    p_hidden,
    p_delta,
    p_norm,
    p_w,
    p_sum,
    p_x,
    p_y,
    num_rows,
    stride_part,
    stride_split,
    eps,
    NUM_PARTS: tl.constexpr,
    DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PDL: tl.constexpr,
):
    """Multiply a band of rows of the weights, COLUMNS of their columns. Programs of the first band
    store the sum and its norm."""
    split = tl.program_id(1)
    rows = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    o_k = split * COLUMNS + tl.arange(0, COLUMNS)
    o_w = tl.minimum(rows, num_rows - 1).to(tl.int64)[:, None] * DIM + o_k[None, :]
    b_w = tl.load(p_w + o_w)
    b_norm = tl.load(p_norm + o_k)
    wait_for_inputs(PDL)
    b_all = _sum(p_hidden, p_delta, tl.arange(0, DIM), stride_part, NUM_PARTS).to(tl.float32)
    b_own = _sum(p_hidden, p_delta, o_k, stride_part, NUM_PARTS)
    b_scale = tl.rsqrt(tl.sum(b_all * b_all, axis=0) / DIM + eps)
    b_x = (b_own.to(tl.float32) * b_scale * b_norm).to(p_x.dtype.element_ty)
    o_t = tl.arange(0, TOKENS)
    b_tile = tl.where((o_t == 0)[:, None], b_x[None, :], tl.zeros((TOKENS, COLUMNS), b_x.dtype))
    b_y = dot(b_w, tl.trans(b_tile), tl.zeros((BLOCK_N, TOKENS), tl.float32))
    p_y += split * stride_split + rows[:, None] + o_t[None, :]
    tl.store(p_y, b_y, mask=(rows < num_rows)[:, None] & (o_t == 0)[None, :])
    if tl.program_id(0) == 0:
        tl.store(p_x + o_k, b_x)
        tl.store(p_sum + o_k, b_own)


def suits_norm_linear(hidden: torch.Tensor, w: Matrix) -> bool:
    """True if ``norm_linear`` supports hidden [tokens, dim] and w [rows, dim]."""
    num_tokens, dim = hidden.shape
    columns = dim // SPLITS
    has_tiles = dim & (dim - 1) == 0 and 16 <= columns <= MAX_COLUMNS
    return num_tokens == 1 and not w.num_quantised and w.shape[0] <= MANY_ROWS and has_tiles


def norm_linear(
    hidden: torch.Tensor, delta: torch.Tensor, norm: torch.Tensor, eps: float, w: Matrix
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(``hidden`` [1, dim] plus ``delta``, its norm, the norm's product with ``w`` [rows, dim] as
    float32 slices [parts, 1, rows] to be added).

    delta [parts, 1, dim], any float dtype, rows contiguous; norm [dim] float32, already ``1 + w``.
    """
    (_, dim), num_rows, num_parts = hidden.shape, w.shape[0], delta.shape[0]
    assert suits_norm_linear(hidden, w)
    assert w.shape == (num_rows, dim)
    assert delta.shape == (num_parts, 1, dim), delta.shape
    assert delta.stride(2) == 1
    assert norm.shape == (dim,)
    assert norm.dtype == torch.float32
    assert all(t.is_contiguous() for t in (hidden, norm, w.plain))
    y = aligned_rows(SPLITS, 1, num_rows, dtype=torch.float32, device=hidden.device)
    # Not in place: other programs may have to read ``hidden`` still.
    added, x = torch.empty_like(hidden), torch.empty_like(hidden)
    _norm_linear_kernel[(triton.cdiv(num_rows, BAND), SPLITS)](
        hidden, delta, norm, w.plain, added, x, y, num_rows, delta.stride(0), y.stride(0), eps,
        NUM_PARTS=num_parts, DIM=dim, COLUMNS=dim // SPLITS, BLOCK_N=BAND,
        num_warps=8, **LOADS_FIRST, **overlap(hidden),
    )  # fmt: skip
    return added, x, y
