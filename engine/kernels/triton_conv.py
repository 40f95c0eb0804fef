"""Causal conv of packed prefill chunks, with the unit length of q and k fused.

    y_t = silu(sum_j weight[:, j] x_{t - 3 + j});   q, k <- y / |y|;   q <- q / sqrt(k_dim)

History before a chunk is the state of its slot; a chunk that starts at 0 has zeros instead.
"""

import torch
import triton
import triton.language as tl

from engine.kernels.triton_prefill_plan import BLOCK, PrefillPlan

HISTORY = 3


def conv_qkv(
    projected: torch.Tensor,
    weight: torch.Tensor,
    conv_state: torch.Tensor,
    state_slots: torch.Tensor,
    plan: PrefillPlan,
    num_k_heads: int,
    k_dim: int,
    v_dim: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """-> q, k [tokens, k_heads, k_dim] of unit length and v [tokens, v_heads, v_dim].

    projected [tokens, width], whose first ``channels`` columns are q | k | v; weight [channels, 4];
    conv_state [state slots, channels, 3], read and then moved on in place; state_slots [rows].
    """
    num_tokens = projected.shape[0]
    channels = weight.shape[0]
    key_dim = num_k_heads * k_dim
    num_v_heads = (channels - 2 * key_dim) // v_dim
    assert num_tokens == plan.num_tokens, (projected.shape, plan.num_tokens)
    assert projected.stride(1) == 1, projected.stride()
    assert weight.shape[1] == HISTORY + 1, weight.shape
    assert weight.is_contiguous()
    assert conv_state.shape[1:] == (channels, HISTORY), conv_state.shape
    assert conv_state.stride()[1:] == (HISTORY, 1), conv_state.stride()
    q = projected.new_empty(num_tokens, num_k_heads, k_dim)
    k = torch.empty_like(q)
    v = projected.new_empty(num_tokens, num_v_heads, v_dim)
    num_blocks = plan.block_rows.shape[0]
    common = (projected, weight, conv_state, state_slots, plan.firsts, plan.starts)
    strides = (projected.stride(0), conv_state.stride(0))
    blocks = (plan.block_firsts, plan.block_rows)
    _conv_kernel[(2 * num_k_heads, num_blocks)](
        *common, *blocks, q, k, *strides, 0, k_dim**-0.5,
        NUM_HEADS=num_k_heads, DIM=k_dim, BLOCK=BLOCK, UNIT=True, num_warps=8,
    )  # fmt: skip
    _conv_kernel[(num_v_heads, num_blocks)](
        *common, *blocks, v, v, *strides, 2 * key_dim, 1.0,
        NUM_HEADS=num_v_heads, DIM=v_dim, BLOCK=BLOCK, UNIT=False, num_warps=8,
    )  # fmt: skip
    block_channels = min(1024, triton.next_power_of_2(channels))
    _history_kernel[(triton.cdiv(channels, block_channels), plan.starts.shape[0])](
        projected, conv_state, state_slots, plan.firsts, plan.starts, *strides, channels,
        BLOCK=block_channels,
    )  # fmt: skip
    return q, k, v


@triton.jit
def _conv_kernel(
    p_x,
    p_weight,
    p_state,
    p_slots,
    p_firsts,
    p_starts,
    p_block_firsts,
    p_block_rows,
    p_first_half,
    p_second_half,
    x_stride,
    slot_stride,
    channel,
    scale,
    NUM_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    UNIT: tl.constexpr,
):
    """One head of one block; heads past NUM_HEADS go to the second output, unscaled."""
    head = tl.program_id(0)
    row = tl.load(p_block_rows + tl.program_id(1))
    block = tl.program_id(1) - tl.load(p_block_firsts + row)
    first = tl.load(p_firsts + row)
    length = tl.load(p_firsts + row + 1) - first
    o_d = tl.arange(0, DIM)
    o_c = channel + head * DIM + o_d
    o_t = block * BLOCK + tl.arange(0, BLOCK)
    p_x += first.to(tl.int64) * x_stride
    b_y = tl.zeros([BLOCK, DIM], tl.float32)
    for j in tl.static_range(4):
        o_j = o_t + (j - 3)
        m_j = (o_j >= 0) & (o_j < length)
        p_j = p_x + o_j.to(tl.int64)[:, None] * x_stride + o_c[None, :]
        b_x = tl.load(p_j, mask=m_j[:, None], other=0.0).to(tl.float32)
        b_y += b_x * tl.load(p_weight + o_c * 4 + j).to(tl.float32)[None, :]
    if (block == 0) & (tl.load(p_starts + row) > 0):
        p_state += tl.load(p_slots + row).to(tl.int64) * slot_stride
        for j in tl.static_range(3):
            o_j = o_t + j
            p_j = p_state + o_c[None, :] * 3 + o_j[:, None]
            b_h = tl.load(p_j, mask=(o_j < 3)[:, None], other=0.0).to(tl.float32)
            b_y += b_h * tl.load(p_weight + o_c * 4 + j).to(tl.float32)[None, :]
    b_y = b_y * tl.sigmoid(b_y)
    if UNIT:
        b_y = b_y.to(p_x.dtype.element_ty).to(tl.float32)
        b_y *= tl.rsqrt(tl.sum(b_y * b_y, 1) + 1e-6)[:, None]
    p_out = p_first_half
    if head >= NUM_HEADS:
        p_out = p_second_half
        head -= NUM_HEADS
    else:
        b_y *= scale
    p_out += ((first + o_t).to(tl.int64)[:, None] * NUM_HEADS + head) * DIM + o_d[None, :]
    tl.store(p_out, b_y.to(p_x.dtype.element_ty), mask=(o_t < length)[:, None])


@triton.jit
def _history_kernel(
    p_x,
    p_state,
    p_slots,
    p_firsts,
    p_starts,
    x_stride,
    slot_stride,
    channels,
    BLOCK: tl.constexpr,
):
    """The last three inputs of each row become its state; a short row keeps part of the old."""
    row = tl.program_id(1)
    o_c = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m_c = o_c < channels
    first = tl.load(p_firsts + row)
    length = tl.load(p_firsts + row + 1) - first
    started = tl.load(p_starts + row) > 0
    p_h = p_state + tl.load(p_slots + row).to(tl.int64) * slot_stride + o_c * 3
    p_x += first.to(tl.int64) * x_stride + o_c
    b_0 = _input(p_x, p_h, length - 3, x_stride, started, m_c)
    b_1 = _input(p_x, p_h, length - 2, x_stride, started, m_c)
    b_2 = _input(p_x, p_h, length - 1, x_stride, started, m_c)
    tl.debug_barrier()
    tl.store(p_h, b_0, mask=m_c)
    tl.store(p_h + 1, b_1, mask=m_c)
    tl.store(p_h + 2, b_2, mask=m_c)


@triton.jit
def _input(p_x, p_h, t, x_stride, started, m_c):
    """Input ``t`` of a row: its own, the state's for t < 0, zero if there is none."""
    b_old = tl.load(p_h + 3 + t, mask=m_c & (t < 0) & started, other=0.0)
    b_new = tl.load(p_x + t.to(tl.int64) * x_stride, mask=m_c & (t >= 0), other=0.0)
    return tl.where(t < 0, b_old, b_new)
