"""One decode step of Gated DeltaNet, from the input projection to the gated norm.

For each row and value head, with S [k_dim, v_dim] the head's float32 state and w the conv taps:

    x <- silu(w . [history, x]);   q, k <- x / |x|,  q <- q / sqrt(k_dim)
    beta = sigmoid(b);   decay = exp(neg_exp_a * softplus(a + dt_bias))
    u = beta (v - decay S^T k);   o = decay S^T q + (q . k) u;   S <- decay S + k u^T
    out = o / rms(o) * norm * silu(z)

Two kernels: the first line and the gates, a program for each head of channels, which alone moves
their history on; then the rest, whose programs start while the first kernel runs (programmatic
dependent launch), read their part of the state, and only then wait for it. The state is read once
and written once; both products with it come from the read (arXiv:2412.06464 writes o after the
update: the same number). Where several programs share a head, the last one to arrive norms it.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from engine.kernels.triton_overlap import wait_for_inputs

HISTORY = 3
"""Inputs kept by the conv of kernel size 4."""


@dataclass(frozen=True)
class DeltaWorkspace:
    """Scratch of ``delta_decode``; calls on one stream may share it.

    ``mixed`` [rows, channels], ``gates`` [rows, 2, v_heads] and ``outputs`` [rows, value_dim] are
    float32; ``arrivals`` [rows, v_heads] int32, zero between calls.
    """

    mixed: torch.Tensor
    gates: torch.Tensor
    outputs: torch.Tensor
    arrivals: torch.Tensor

    @classmethod
    def allocate(
        cls, max_rows: int, channels: int, num_v_heads: int, v_dim: int, device: torch.device
    ) -> "DeltaWorkspace":
        return cls(
            torch.empty(max_rows, channels, device=device),
            torch.empty(max_rows, 2, num_v_heads, device=device),
            torch.empty(max_rows, num_v_heads * v_dim, device=device),
            torch.zeros(max_rows, num_v_heads, dtype=torch.int32, device=device),
        )


def delta_decode(
    projected: torch.Tensor,
    conv_weight: torch.Tensor,
    conv_state: torch.Tensor,
    neg_exp_a: torch.Tensor,
    dt_bias: torch.Tensor,
    norm_weight: torch.Tensor,
    state: torch.Tensor,
    state_slots: torch.Tensor,
    eps: float,
    workspace: DeltaWorkspace,
    *,
    block_columns: int = 0,
    num_warps: int = 0,
) -> torch.Tensor:
    """Advance each row's state by one token -> [rows, value_dim] in ``projected``'s dtype.

    projected [rows, q | k | v | z | b | a]; conv_weight [channels, 4]; conv_state [state slots,
    channels, 3] and state [state slots, v_heads, k_dim, v_dim] float32 (one layer's views) are
    updated in place at ``state_slots`` (int32 [rows]); neg_exp_a, dt_bias [v_heads] and
    norm_weight [v_dim] are float32. A row whose slot is -1 yields zeros and touches nothing. Two
    rows must not share a slot. ``block_columns`` and ``num_warps`` 0 pick by the number of rows.
    """
    num_rows, width = projected.shape
    num_v_heads, k_dim, v_dim = state.shape[1:]
    value_dim = num_v_heads * v_dim
    channels = conv_weight.shape[0]
    num_k_heads = (channels - value_dim) // (2 * k_dim)
    assert channels == 2 * num_k_heads * k_dim + value_dim, (channels, state.shape)
    assert width == channels + value_dim + 2 * num_v_heads, (width, channels, state.shape)
    assert conv_weight.shape[1] == HISTORY + 1, conv_weight.shape
    assert conv_weight.is_contiguous()
    assert conv_state.shape[1:] == (channels, HISTORY), conv_state.shape
    assert conv_state.stride()[1:] == (HISTORY, 1), conv_state.stride()
    assert state.dtype == torch.float32, state.dtype
    assert state.stride()[1:] == (k_dim * v_dim, v_dim, 1), state.stride()
    assert projected.stride(1) == 1, projected.stride()
    assert state_slots.shape == (num_rows,), state_slots.shape
    assert state_slots.is_contiguous()
    assert k_dim == v_dim, state.shape
    assert workspace.mixed.shape[0] >= num_rows, (workspace.mixed.shape, num_rows)
    assert workspace.mixed.shape[1] == channels, (workspace.mixed.shape, channels)
    assert workspace.outputs.shape[1] == value_dim, workspace.outputs.shape
    if not block_columns:
        block_columns, num_warps = (v_dim // 4, 1) if num_rows <= 4 else (v_dim // 2, 2)
    assert v_dim % block_columns == 0, (v_dim, block_columns)
    out = torch.empty(num_rows, value_dim, dtype=projected.dtype, device=projected.device)
    if num_rows == 0:
        return out
    early = {"launch_pdl": True} if projected.is_cuda else {}
    # Heads of one program: all of q, of k or of v.
    heads_each = math.gcd(4, num_k_heads, num_v_heads)
    _mix_kernel[((2 * num_k_heads + num_v_heads) // heads_each, num_rows)](
        projected, conv_weight, conv_state, neg_exp_a, dt_bias, state_slots,
        workspace.mixed, workspace.gates,
        projected.stride(0), conv_state.stride(0), k_dim**-0.5,
        K_HEADS=num_k_heads, V_HEADS=num_v_heads, DIM=v_dim, EACH=heads_each,
        ON_GPU=projected.is_cuda, num_warps=heads_each, **early,
    )  # fmt: skip
    _update_kernel[(num_v_heads * (v_dim // block_columns), num_rows)](
        workspace.mixed, workspace.gates, projected, norm_weight, state, state_slots, out,
        workspace.outputs, workspace.arrivals, projected.stride(0), state.stride(0), eps,
        K_HEADS=num_k_heads, V_HEADS=num_v_heads, DIM=v_dim, COLUMNS=block_columns,
        ON_GPU=projected.is_cuda, num_warps=num_warps, **early,
    )  # fmt: skip
    return out


@triton.jit
def _mix_kernel(
    p_x,
    p_weight,
    p_conv_state,
    p_neg_exp_a,
    p_dt_bias,
    p_slots,
    p_mixed,
    p_gates,
    x_stride,
    conv_slot_stride,
    scale,
    K_HEADS: tl.constexpr,
    V_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    EACH: tl.constexpr,
    ON_GPU: tl.constexpr,
):
    """EACH heads of channels of one row: of q, of k, or of v with their gates."""
    head, row = tl.program_id(0) * EACH, tl.program_id(1)
    slot = tl.load(p_slots + row).to(tl.int64)
    if slot < 0:
        return
    CHANNELS: tl.constexpr = (2 * K_HEADS + V_HEADS) * DIM
    p_x += row * x_stride.to(tl.int64)
    o_head = tl.maximum(head - 2 * K_HEADS, 0) + tl.arange(0, EACH)
    b_dt_bias, b_neg_exp_a = tl.load(p_dt_bias + o_head), tl.load(p_neg_exp_a + o_head)
    o_c = head * DIM + tl.arange(0, EACH * DIM)
    p_h = p_conv_state + slot * conv_slot_stride + o_c * 3
    p_w = p_weight + o_c * 4
    b_h0, b_h1, b_h2 = tl.load(p_h), tl.load(p_h + 1), tl.load(p_h + 2)
    b_w0, b_w1, b_w2, b_w3 = tl.load(p_w), tl.load(p_w + 1), tl.load(p_w + 2), tl.load(p_w + 3)
    wait_for_inputs(ON_GPU)
    p_b = p_x + CHANNELS + V_HEADS * DIM + o_head
    b_b, b_a = tl.load(p_b).to(tl.float32), tl.load(p_b + V_HEADS).to(tl.float32)
    b_a += b_dt_bias
    b_x = tl.load(p_x + o_c)
    b_y = b_h0.to(tl.float32) * b_w0.to(tl.float32)
    b_y += b_h1.to(tl.float32) * b_w1.to(tl.float32)
    b_y += b_h2.to(tl.float32) * b_w2.to(tl.float32)
    b_y += b_x.to(tl.float32) * b_w3.to(tl.float32)
    # Rounded as the activations are, like the conv of a prefill.
    b_y = (b_y * tl.sigmoid(b_y)).to(b_x.dtype).to(tl.float32)
    # NOTE: copies of a channel may be loaded by several threads: all load before any stores.
    tl.debug_barrier()
    tl.store(p_h, b_h1)
    tl.store(p_h + 1, b_h2)
    tl.store(p_h + 2, b_x)
    if head < 2 * K_HEADS:
        b_heads = tl.reshape(b_y, [EACH, DIM])
        b_scale = tl.rsqrt(tl.sum(b_heads * b_heads, 1) + 1e-6)
        if head < K_HEADS:
            b_scale *= scale
        b_y = tl.reshape(b_heads * b_scale[:, None], [EACH * DIM])
    else:
        b_softplus = tl.where(b_a > 20.0, b_a, tl.log(1.0 + tl.exp(b_a)))
        p_gate = p_gates + row * (2 * V_HEADS) + o_head
        tl.store(p_gate, tl.exp(b_neg_exp_a * b_softplus))
        tl.store(p_gate + V_HEADS, tl.sigmoid(b_b))
    tl.store(p_mixed + row * CHANNELS + o_c, b_y)


@triton.jit
def _add_three(a_0, a_1, a_2, b_0, b_1, b_2):
    """Sums three tensors in one reduction, which waits for the other warps once."""
    return a_0 + b_0, a_1 + b_1, a_2 + b_2


@triton.jit
def _update_kernel(
    p_mixed,
    p_gates,
    p_x,
    p_norm,
    p_state,
    p_slots,
    p_out,
    p_outputs,
    p_arrivals,
    x_stride,
    state_slot_stride,
    eps,
    K_HEADS: tl.constexpr,
    V_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
    ON_GPU: tl.constexpr,
):
    """COLUMNS of one head's state of one row."""
    PARTS: tl.constexpr = DIM // COLUMNS
    CHANNELS: tl.constexpr = (2 * K_HEADS + V_HEADS) * DIM
    head, part, row = tl.program_id(0) // PARTS, tl.program_id(0) % PARTS, tl.program_id(1)
    o_k = tl.arange(0, DIM)
    o_v = part * COLUMNS + tl.arange(0, COLUMNS)
    p_out += row * (V_HEADS * DIM) + head * DIM
    slot = tl.load(p_slots + row).to(tl.int64)
    if slot < 0:
        tl.store(p_out + o_v, tl.zeros([COLUMNS], p_out.dtype.element_ty))
        return
    # No kernel of this step has written the state before.
    p_s = p_state + slot * state_slot_stride + head * (DIM * DIM)
    p_s += o_k[:, None] * DIM + o_v[None, :]
    b_s = tl.load(p_s)
    wait_for_inputs(ON_GPU)
    p_mixed += row * CHANNELS
    k_head = head // (V_HEADS // K_HEADS)
    b_q = tl.load(p_mixed + k_head * DIM + o_k)
    b_k = tl.load(p_mixed + (K_HEADS + k_head) * DIM + o_k)
    b_v = tl.load(p_mixed + (2 * K_HEADS + head) * DIM + o_v)
    p_gates += row * (2 * V_HEADS) + head
    b_decay, b_beta = tl.load(p_gates), tl.load(p_gates + V_HEADS)
    b_qk = tl.broadcast_to((b_q * b_k)[:, None], [DIM, COLUMNS])
    products = (b_s * b_k[:, None], b_s * b_q[:, None], b_qk)
    b_kv, b_qv, b_qk = tl.reduce(products, 0, _add_three)
    b_u = b_beta * (b_v - b_decay * b_kv)
    b_o = b_decay * b_qv + b_qk * b_u
    b_s = b_s * b_decay + b_k[:, None] * b_u[None, :]
    tl.store(p_s, b_s)

    p_z = p_x + row * x_stride.to(tl.int64) + CHANNELS + head * DIM
    if PARTS == 1:
        _store_normed(p_out, p_z, p_norm, b_o, eps, DIM)
    else:
        p_outputs += row * (V_HEADS * DIM) + head * DIM
        tl.store(p_outputs + o_v, b_o)
        tl.debug_barrier()
        p_arrived = p_arrivals + row * V_HEADS + head
        if tl.atomic_add(p_arrived, 1, sem="acq_rel") == PARTS - 1:
            b_all = tl.load(p_outputs + o_k, cache_modifier=".cg")
            _store_normed(p_out, p_z, p_norm, b_all, eps, DIM)
            tl.store(p_arrived, 0)


@triton.jit
def _store_normed(p_out, p_z, p_norm, b_o, eps, DIM: tl.constexpr):
    """Gated RMS norm of one head's output b_o [DIM]."""
    o_v = tl.arange(0, DIM)
    b_z = tl.load(p_z + o_v).to(tl.float32)
    b_o *= tl.rsqrt(tl.sum(b_o * b_o, 0) / DIM + eps) * tl.load(p_norm + o_v)
    b_o *= b_z * tl.sigmoid(b_z)
    tl.store(p_out + o_v, b_o.to(p_out.dtype.element_ty))
