"""RMS norm per head, then the silu gate:  out = x / rms(x) * weight * silu(gate).

Reference: torch_norm.gated_rms_norm; test: tests/kernels/delta/test_delta.py.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from math import gcd

import torch
import triton
import triton.language as tl

from engine.kernels.formats.triton_quantise import BLOCK, Quantised, store_quantised


def gated_rms_norm(
    x: torch.Tensor,
    gate: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    quantised: Quantised | None = None,
) -> torch.Tensor:
    """Norm and gate -> [tokens, heads * dim] in ``gate``'s dtype.

    x [tokens, heads, dim]; gate [tokens, heads * dim], which may be columns of a wider matrix;
    weight [dim] float32. ``quantised`` receives the result in FP8; dim is then 128.
    """
    num_tokens, num_heads, dim = x.shape
    assert x.is_contiguous()
    assert gate.shape == (num_tokens, num_heads * dim), (gate.shape, x.shape)
    assert gate.stride(1) == 1, gate.stride()
    assert weight.shape == (dim,), weight.shape
    out = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    assert quantised is None or (dim == BLOCK and quantised.is_of_rows(gate))
    if num_tokens == 0:
        return out
    heads_each = gcd(32, num_heads)
    assert num_heads % heads_each == 0, num_heads
    _norm_kernel[(num_tokens, num_heads // heads_each)](
        x, gate, weight, out, *(quantised or (out, weight)), gate.stride(0), eps,
        WIDTH=num_heads * dim, HEADS=heads_each, DIM=dim, QUANTISES=quantised is not None,
        num_warps=4,
    )  # fmt: skip
    return out


@triton.jit
def _norm_kernel(
    p_x,
    p_gate,
    p_weight,
    p_out,
    p_q,
    p_scales,
    gate_stride,
    eps,
    WIDTH: tl.constexpr,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    QUANTISES: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    o_d = tl.arange(0, DIM)
    o_x = (tl.program_id(1) * HEADS + tl.arange(0, HEADS))[:, None] * DIM + o_d[None, :]
    b_x = tl.load(p_x + token * WIDTH + o_x).to(tl.float32)
    b_gate = tl.load(p_gate + token * gate_stride + o_x).to(tl.float32)
    b_scale = tl.rsqrt(tl.sum(b_x * b_x, 1) / DIM + eps)
    b_x *= b_scale[:, None] * tl.load(p_weight + o_d)[None, :]
    b_x *= b_gate * tl.sigmoid(b_gate)
    b_out = b_x.to(p_out.dtype.element_ty)
    tl.store(p_out + token * WIDTH + o_x, b_out)
    if QUANTISES:
        first, num_tokens = tl.program_id(1) * HEADS, tl.num_programs(0)
        store_quantised(b_out.to(tl.float32), p_q, p_scales, token, num_tokens, first, WIDTH)
