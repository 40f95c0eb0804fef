"""One decode step of Gated DeltaNet, from the input projection to the gated norm, in one kernel.

For each row and value head, with S [k_dim, v_dim] the head's float32 state and w the conv taps:

    x <- silu(w . [history, x]);   q, k <- x / |x|,  q <- q / sqrt(k_dim)
    beta = sigmoid(b);   decay = exp(neg_exp_a * softplus(a + dt_bias))
    u = beta (v - decay S^T k);   o = decay S^T q + (q . k) u;   S <- decay S + k u^T
    out = o / rms(o) * norm * silu(z)

The state is read once and written once; both products with it come from the read (arXiv:2412.06464
writes o after the update: the same number). Value heads that share a key head lie side by side as
columns, and a program takes ``block_columns`` of them. Where several programs share a key head, the
last one to arrive norms their outputs and moves the conv history of q and k on: by then all have
read it, and what it computes does not depend on which program it is.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

HISTORY = 3
"""Inputs kept by the conv of kernel size 4."""


@dataclass(frozen=True)
class DeltaWorkspace:
    """Scratch of ``delta_decode``; calls on one stream may share it.

    ``outputs`` [rows, value_dim] float32; ``arrivals`` [rows, k_heads] int32, zero between calls.
    """

    outputs: torch.Tensor
    arrivals: torch.Tensor

    @classmethod
    def allocate(
        cls, max_rows: int, num_k_heads: int, value_dim: int, device: torch.device
    ) -> "DeltaWorkspace":
        return cls(
            torch.empty(max_rows, value_dim, device=device),
            torch.zeros(max_rows, num_k_heads, dtype=torch.int32, device=device),
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
    group = num_v_heads // num_k_heads
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
    assert workspace.outputs.shape[0] >= num_rows, (workspace.outputs.shape, num_rows)
    assert workspace.outputs.shape[1] == value_dim, workspace.outputs.shape
    if not block_columns:
        block_columns, num_warps = (v_dim // 4, 1) if num_rows <= 4 else (v_dim // 2, 2)
    columns = group * v_dim
    assert columns % block_columns == 0, (columns, block_columns)
    assert v_dim % block_columns == 0 or block_columns == columns, (v_dim, block_columns)
    out = torch.empty(num_rows, value_dim, dtype=projected.dtype, device=projected.device)
    if num_rows == 0:
        return out
    _decode_kernel[(num_k_heads * (columns // block_columns), num_rows)](
        projected,
        conv_weight,
        conv_state,
        neg_exp_a,
        dt_bias,
        norm_weight,
        state,
        state_slots,
        out,
        workspace.outputs,
        workspace.arrivals,
        projected.stride(0),
        conv_state.stride(0),
        state.stride(0),
        eps,
        k_dim**-0.5,
        NUM_K_HEADS=num_k_heads,
        GROUP=group,
        K_DIM=k_dim,
        V_DIM=v_dim,
        COLUMNS=block_columns,
        num_warps=num_warps,
    )
    return out


@triton.jit
def _convolved(p_x, p_weight, p_history, o_c):
    """silu of the conv at channels ``o_c`` (rounded as activations are), and the new history."""
    p_h = p_history + o_c * 3
    b_h0, b_h1, b_h2 = tl.load(p_h), tl.load(p_h + 1), tl.load(p_h + 2)
    b_x = tl.load(p_x + o_c)
    p_w = p_weight + o_c * 4
    b_y = b_h0.to(tl.float32) * tl.load(p_w).to(tl.float32)
    b_y += b_h1.to(tl.float32) * tl.load(p_w + 1).to(tl.float32)
    b_y += b_h2.to(tl.float32) * tl.load(p_w + 2).to(tl.float32)
    b_y += b_x.to(tl.float32) * tl.load(p_w + 3).to(tl.float32)
    b_y = (b_y * tl.sigmoid(b_y)).to(b_x.dtype).to(tl.float32)
    return b_y, b_h1, b_h2, b_x


@triton.jit
def _store_history(p_history, o_c, b_h0, b_h1, b_h2):
    p_h = p_history + o_c * 3
    tl.store(p_h, b_h0)
    tl.store(p_h + 1, b_h1)
    tl.store(p_h + 2, b_h2)


@triton.jit
def _decode_kernel(
    p_projected,
    p_weight,
    p_conv_state,
    p_neg_exp_a,
    p_dt_bias,
    p_norm,
    p_state,
    p_slots,
    p_out,
    p_outputs,
    p_arrivals,
    projected_stride,
    conv_slot_stride,
    state_slot_stride,
    eps,
    scale,
    NUM_K_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    K_DIM: tl.constexpr,
    V_DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    PARTS: tl.constexpr = GROUP * V_DIM // COLUMNS
    NUM_V_HEADS: tl.constexpr = NUM_K_HEADS * GROUP
    VALUE_DIM: tl.constexpr = NUM_V_HEADS * V_DIM
    KEY_DIM: tl.constexpr = NUM_K_HEADS * K_DIM
    row = tl.program_id(1)
    k_head = tl.program_id(0) // PARTS
    part = tl.program_id(0) % PARTS
    # A column is an index into [v_heads, v_dim].
    o_column = k_head * GROUP * V_DIM + part * COLUMNS + tl.arange(0, COLUMNS)
    p_out += row * VALUE_DIM
    slot = tl.load(p_slots + row).to(tl.int64)
    if slot < 0:
        tl.store(p_out + o_column, tl.zeros([COLUMNS], p_out.dtype.element_ty))
        return

    o_head = o_column // V_DIM
    o_k = tl.arange(0, K_DIM)
    p_s = p_state + slot * state_slot_stride
    p_s += (o_head * (K_DIM * V_DIM) + o_column % V_DIM)[None, :] + (o_k * V_DIM)[:, None]
    b_s = tl.load(p_s)

    p_x = p_projected + row * projected_stride.to(tl.int64)
    p_history = p_conv_state + slot * conv_slot_stride
    o_q = k_head * K_DIM + o_k
    b_q, q_h0, q_h1, q_h2 = _convolved(p_x, p_weight, p_history, o_q)
    b_k, k_h0, k_h1, k_h2 = _convolved(p_x, p_weight, p_history, KEY_DIM + o_q)
    o_v = 2 * KEY_DIM + o_column
    b_v, v_h0, v_h1, v_h2 = _convolved(p_x, p_weight, p_history, o_v)
    b_q *= tl.rsqrt(tl.sum(b_q * b_q, 0) + 1e-6) * scale
    b_k *= tl.rsqrt(tl.sum(b_k * b_k, 0) + 1e-6)

    p_z = p_x + 2 * KEY_DIM + VALUE_DIM
    p_b = p_z + VALUE_DIM
    b_beta = tl.sigmoid(tl.load(p_b + o_head).to(tl.float32))
    b_a = tl.load(p_b + NUM_V_HEADS + o_head).to(tl.float32) + tl.load(p_dt_bias + o_head)
    b_softplus = tl.where(b_a > 20.0, b_a, tl.log(1.0 + tl.exp(b_a)))
    b_decay = tl.exp(tl.load(p_neg_exp_a + o_head) * b_softplus)

    b_kv = tl.sum(b_s * b_k[:, None], 0)
    b_qv = tl.sum(b_s * b_q[:, None], 0)
    b_u = b_beta * (b_v - b_decay * b_kv)
    b_o = b_decay * b_qv + tl.sum(b_q * b_k, 0) * b_u
    tl.store(p_s, b_s * b_decay[None, :] + b_k[:, None] * b_u[None, :])

    if PARTS == 1:
        b_o = tl.reshape(b_o, [GROUP, V_DIM])
        # NOTE: copies of a channel may be loaded by several warps: all loads come before any store.
        tl.debug_barrier()
        _store_history(p_history, o_v, v_h0, v_h1, v_h2)
        _store_history(p_history, o_q, q_h0, q_h1, q_h2)
        _store_history(p_history, KEY_DIM + o_q, k_h0, k_h1, k_h2)
        _store_normed(p_out, p_z, p_norm, b_o, k_head * GROUP, eps, GROUP, V_DIM)
    else:
        p_o = p_outputs + row * VALUE_DIM
        tl.store(p_o + o_column, b_o)
        tl.debug_barrier()
        _store_history(p_history, o_v, v_h0, v_h1, v_h2)
        p_arrived = p_arrivals + row * NUM_K_HEADS + k_head
        if tl.atomic_add(p_arrived, 1, sem="acq_rel") == PARTS - 1:
            o_all = (k_head * GROUP + tl.arange(0, GROUP))[:, None] * V_DIM
            o_all += tl.arange(0, V_DIM)[None, :]
            b_all = tl.load(p_o + o_all, cache_modifier=".cg")
            _store_history(p_history, o_q, q_h0, q_h1, q_h2)
            _store_history(p_history, KEY_DIM + o_q, k_h0, k_h1, k_h2)
            _store_normed(p_out, p_z, p_norm, b_all, k_head * GROUP, eps, GROUP, V_DIM)
            tl.store(p_arrived, 0)


@triton.jit
def _store_normed(p_out, p_z, p_norm, b_o, head, eps, GROUP: tl.constexpr, V_DIM: tl.constexpr):
    """Gated RMS norm of the heads' outputs b_o [GROUP, V_DIM]."""
    o_v = tl.arange(0, V_DIM)
    o_out = (head + tl.arange(0, GROUP))[:, None] * V_DIM + o_v[None, :]
    b_z = tl.load(p_z + o_out).to(tl.float32)
    b_scale = tl.rsqrt(tl.sum(b_o * b_o, 1) / V_DIM + eps)
    b_o = b_o * b_scale[:, None] * tl.load(p_norm + o_v)[None, :] * (b_z * tl.sigmoid(b_z))
    tl.store(p_out + o_out, b_o.to(p_out.dtype.element_ty))
