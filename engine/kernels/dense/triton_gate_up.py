# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""The first half of a dense MLP.

    h[t, n] = act(Σ_k x[t, k] gate[n, k]) * Σ_k x[t, k] up[n, k],   act: silu, or GELU by tanh

For up to 64 tokens one kernel streams a band of rows of gate and the same of up past the tokens,
tokens padded to 16. With more tokens, and with weights in FP8, a second kernel computes the
activation of the products. Up to 64 tokens a token's bits do not depend on the others.

Reference: torch_experts.gate_mul of x @ weight.T; test: tests/kernels/dense/test_gate_up.py.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from engine.gpu_arch import has_small_shared_memory
from engine.kernels.dense.triton_linear import MAX_STREAMED, linear
from engine.kernels.formats.triton_quantise import Prepared
from engine.kernels.triton_arch import arch_of
from engine.kernels.triton_dot import dot
from engine.kernels.triton_overlap import overlap, prefetch, wait_for_inputs
from engine.model.layers import Activation
from engine.model.matrix import Matrix

COLUMNS = 1024
"""Columns of an activation that a program computes."""


@dataclass(frozen=True)
class Tiles:
    """Rows of gate (and as many of up) and k of a tile, tiles in flight, and warps."""

    rows: int
    k: int
    stages: int
    warps: int


@triton.jit
def activated(b_gate, b_up, GELU: tl.constexpr):
    """act(gate) * up in float32."""
    b_u = b_gate
    if GELU:  # (1 + tanh(u)) / 2 = sigmoid(2 u)
        b_u = 1.5957691216057308 * (b_gate + 0.044715 * b_gate * b_gate * b_gate)
    return b_gate / (1.0 + tl.exp(-b_u)) * b_up


@triton.jit(do_not_specialize=["num_tokens"])
def _gated_linear_kernel(
    p_x,
    p_w,
    p_h,
    num_tokens,
    stride_x,
    K: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
    PREFETCHED: tl.constexpr,
    GELU: tl.constexpr,
    PDL: tl.constexpr,
):
    rows = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    tokens, o_k = tl.arange(0, BLOCK_T), tl.arange(0, BLOCK_K)
    in_batch = (tokens < num_tokens)[:, None]
    p_gate = p_w + rows.to(tl.int64)[:, None] * K
    p_up = p_gate + DIM * K
    prefetch(p_gate, PREFETCHED * 2, PDL)
    prefetch(p_up, PREFETCHED * 2, PDL)
    wait_for_inputs(PDL)
    p_x += tokens[:, None] * stride_x
    b_gate = tl.zeros((BLOCK_N, BLOCK_T), tl.float32)
    b_up = tl.zeros((BLOCK_N, BLOCK_T), tl.float32)
    for k in tl.range(0, K, BLOCK_K, num_stages=STAGES):
        b_x = tl.trans(tl.load(p_x + (k + o_k)[None, :], mask=in_batch, other=0.0))
        b_gate = dot(tl.load(p_gate + (k + o_k)[None, :]), b_x, b_gate)
        b_up = dot(tl.load(p_up + (k + o_k)[None, :]), b_x, b_up)
    b_h = tl.trans(activated(b_gate, b_up, GELU))
    tl.store(p_h + tokens[:, None] * DIM + rows[None, :], b_h.to(p_h.dtype.element_ty), in_batch)


@triton.jit
def _activation_kernel(
    p_projected, p_h, stride, DIM: tl.constexpr, BLOCK: tl.constexpr, GELU: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(1).to(tl.int64)
    o_n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = o_n < DIM
    wait_for_inputs(PDL)
    p_gate = p_projected + token * stride + o_n
    b_gate = tl.load(p_gate, mask=mask, other=0.0).to(tl.float32)
    b_up = tl.load(p_gate + DIM, mask=mask, other=0.0).to(tl.float32)
    b_h = activated(b_gate, b_up, GELU)
    tl.store(p_h + token * DIM + o_n, b_h.to(p_h.dtype.element_ty), mask=mask)


def gate_up(
    x: torch.Tensor,
    weight: Matrix,
    activation: Activation,
    prepared: Prepared | None = None,
) -> torch.Tensor:
    """``act(x @ gate.T) * (x @ up.T)`` [tokens, dim] in ``x``'s dtype.

    x [tokens, k], rows contiguous; weight [2 * dim, k], gate's rows first; k and dim multiples of
    64. ``prepared``: as in ``triton_linear.linear``.
    """
    (num_tokens, k), dim = x.shape, weight.shape[0] // 2
    w, gelu = weight.plain, activation == "gelu_tanh"
    assert weight.shape == (2 * dim, k), (weight.shape, x.shape)
    assert x.stride(1) == 1
    assert x.dtype == w.dtype
    h = torch.empty((num_tokens, dim), dtype=x.dtype, device=x.device)
    if num_tokens > MAX_STREAMED or weight.num_quantised:
        projected = linear(x, weight, prepared)
        block = min(COLUMNS, triton.next_power_of_2(dim))
        _activation_kernel[(triton.cdiv(dim, block), num_tokens)](
            projected, h, projected.stride(0), DIM=dim, BLOCK=block, GELU=gelu, num_warps=4,
            **overlap(x),
        )  # fmt: skip
        return h
    assert w.is_contiguous()
    tiles = tiles_of(num_tokens, k, has_small_shared_memory(arch_of(x)))
    assert dim % tiles.rows == k % tiles.k == 0, (w.shape, tiles)
    _gated_linear_kernel[(dim // tiles.rows,)](
        x, w, h, num_tokens, x.stride(0),
        K=k, DIM=dim, BLOCK_T=max(16, triton.next_power_of_2(num_tokens)),
        BLOCK_N=tiles.rows, BLOCK_K=tiles.k, STAGES=tiles.stages,
        PREFETCHED=min(2 * tiles.k, k), GELU=gelu, num_warps=tiles.warps, num_stages=tiles.stages,
        **overlap(x),
    )  # fmt: skip
    return h


def tiles_of(num_tokens: int, k: int, small_shared: bool = False) -> Tiles:
    """The tiles measured best on an H200 or H100; all tiles give the same bits. ``small_shared``:
    where shared memory is small."""
    if num_tokens > 32 or k % 128:
        return Tiles(64, 64, 5, 4)
    return Tiles(64, 128, 4 if num_tokens <= 16 and not small_shared else 3, 4)
