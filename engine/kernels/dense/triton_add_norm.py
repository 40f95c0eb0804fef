# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Residual add and RMS norm in one pass.

    hidden' = bf16(hidden + Σ_p delta_p);   x = hidden' / rms(hidden') * weight

Computed in float32, the sum over the parts in their order. The parts are the producer's summands:
split-K slices of a linear layer, or the experts' contributions to a token. Here they need no launch
of their own, and the sum's order does not depend on which program finished first.

Reference: torch_norm.rms_norm of the sum; test: tests/kernels/experts/test_triton_moe.py,
test_fp8.py.
"""

import torch
import triton
import triton.language as tl

from engine.kernels.formats.triton_quantise import BLOCK, Prepared, Quantised, store_quantised
from engine.kernels.formats.triton_split import Split, store_split
from engine.kernels.triton_overlap import LOADS_FIRST, overlap, wait_for_inputs


@triton.jit
def _add_rms_norm_kernel(
    p_hidden,
    p_delta,
    p_weight,
    p_x,
    p_q,
    p_s,
    stride_part,
    stride_delta,
    eps,
    NUM_PARTS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLITS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PDL: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    dims = tl.arange(0, BLOCK)
    mask = dims < DIM
    b_weight = tl.load(p_weight + dims, mask=mask, other=0.0)
    wait_for_inputs(PDL)
    b_hidden = tl.load(p_hidden + token * DIM + dims, mask=mask, other=0.0).to(tl.float32)
    if NUM_PARTS > 0:
        p_delta += token * stride_delta
        b_delta = tl.load(p_delta + dims, mask=mask, other=0.0).to(tl.float32)
        for part in tl.static_range(1, NUM_PARTS):
            b_part = tl.load(p_delta + part * stride_part + dims, mask=mask, other=0.0)
            b_delta += b_part.to(tl.float32)
        b_sum = (b_hidden + b_delta).to(p_hidden.dtype.element_ty)
        tl.store(p_hidden + token * DIM + dims, b_sum, mask=mask)
        b_hidden = b_sum.to(tl.float32)
    b_scale = tl.rsqrt(tl.sum(b_hidden * b_hidden, axis=0) / DIM + eps)
    b_x = (b_hidden * b_scale * b_weight).to(p_x.dtype.element_ty)
    tl.store(p_x + token * DIM + dims, b_x, mask=mask)
    if SPLITS:
        store_split(b_x.to(tl.float32), p_q, p_s, token, dims, mask, DIM)
    if COLUMNS > 0:
        b_x = tl.reshape(b_x.to(tl.float32), (BLOCK // COLUMNS, COLUMNS))
        store_quantised(b_x, p_q, p_s, token, tl.num_programs(0), 0, DIM)


def add_rms_norm(
    hidden: torch.Tensor,
    delta: torch.Tensor | None,
    weight: torch.Tensor,
    eps: float,
    prepared: Prepared | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add ``delta`` to ``hidden`` in place; returns (``hidden``, its norm), both [tokens, dim].

    delta [tokens, dim] or [parts, tokens, dim], any float dtype, rows contiguous; None adds
    nothing. weight [dim] float32, already ``1 + w``. ``prepared`` receives the norm too, split in
    two with one scale a token, or in FP8.
    """
    num_tokens, dim = hidden.shape
    assert hidden.is_contiguous()
    assert weight.is_contiguous()
    assert weight.shape == (dim,)
    assert weight.dtype == torch.float32
    num_parts, stride_part, stride_delta = 0, 0, 0
    if delta is not None:
        delta = delta if delta.dim() == 3 else delta.unsqueeze(0)
        num_parts = delta.shape[0]
        assert delta.shape == (num_parts, num_tokens, dim)
        assert delta.stride(2) == 1
        stride_part, stride_delta = delta.stride(0), delta.stride(1)
    assert prepared is None or prepared.is_of_rows(hidden)
    x = torch.empty_like(hidden)
    q, scales = x, weight
    if isinstance(prepared, Split):
        q, scales = prepared.q, prepared.s
    elif prepared is not None:
        q, scales = prepared
    if num_tokens:
        _add_rms_norm_kernel[(num_tokens,)](
            hidden,
            delta if delta is not None else hidden,
            weight,
            x,
            q,
            scales,
            stride_part,
            stride_delta,
            eps,
            NUM_PARTS=num_parts,
            DIM=dim,
            BLOCK=triton.next_power_of_2(dim),
            SPLITS=isinstance(prepared, Split),
            COLUMNS=BLOCK if isinstance(prepared, Quantised) else 0,
            num_warps=8 if num_tokens <= 256 else 4,
            **LOADS_FIRST,
            **overlap(hidden),
        )
    return hidden, x
