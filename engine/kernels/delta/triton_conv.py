"""Causal conv of packed prefill chunks, with the unit length of q and k fused.

    y_t = silu(sum_j weight[:, j] x_{t - 3 + j});   q, k <- y / |y|;   q <- q / sqrt(k_dim)

History before a chunk is the state of its slot; a chunk that starts at 0 has zeros instead.

Reference: torch_conv.conv_prefill; test: tests/kernels/delta/test_delta.py, test_keep.py.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
import torch
import triton
import triton.language as tl

from engine.kernels.batch.triton_prefill_plan import BLOCK, PrefillPlan

HISTORY = 3
PART = 32
"""Number of tokens of one program."""


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
    """Convolve q, k and v -> unit-length q, k [tokens, k_heads, k_dim], v [tokens, v_heads, v_dim].

    projected [tokens, width], whose first ``channels`` columns are q | k | v; weight [channels, 4];
    conv_state [state slots, channels, 3], read and then advanced in place; states that the plan
    ``keeps`` are stored there too; state_slots [rows], not read for rows without tokens.
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
    num_rows = plan.starts.shape[0]
    args = (projected, weight, conv_state, state_slots, plan.firsts, plan.starts, plan.keeps)
    blocks = (plan.block_firsts, plan.block_rows)
    strides = (projected.stride(0), conv_state.stride(0))
    # The first tokens of a row that has history are written twice, the second time with it.
    num_parts = plan.block_rows.shape[0] * (BLOCK // PART)
    for programs, part, edge in ((num_parts, PART, False), (num_rows, 4, True)):
        _conv_kernel[(2 * num_k_heads, programs)](
            *args, *blocks, q, k, *strides, 0, k_dim**-0.5,
            HEADS=num_k_heads, DIM=k_dim, PART=part, BLOCK=BLOCK, UNIT=True, EDGE=edge,
            num_warps=1 if edge else 4,
        )  # fmt: skip
        _conv_kernel[(num_v_heads, programs)](
            *args, *blocks, v, v, *strides, 2 * key_dim, 1.0,
            HEADS=num_v_heads, DIM=v_dim, PART=part, BLOCK=BLOCK, UNIT=False, EDGE=edge,
            num_warps=1 if edge else 4,
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
    p_keeps,
    p_block_firsts,
    p_block_rows,
    p_first_half,
    p_second_half,
    x_stride,
    slot_stride,
    channel,
    scale,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    PART: tl.constexpr,
    BLOCK: tl.constexpr,
    UNIT: tl.constexpr,
    EDGE: tl.constexpr,
):
    """Convolve one head of PART tokens of a block; heads past HEADS go to the second output,
    unscaled.

    EDGE: the first three tokens of a row, with its history, which then advances.
    """
    head = tl.program_id(0)
    row = tl.program_id(1)
    part = 0
    if not EDGE:
        row = tl.load(p_block_rows + tl.program_id(1) // (BLOCK // PART))
        part = tl.program_id(1) - tl.load(p_block_firsts + row) * (BLOCK // PART)
    first = tl.load(p_firsts + row)
    length = tl.load(p_firsts + row + 1) - first
    o_d = tl.arange(0, DIM)
    o_c = channel + head * DIM + o_d
    o_t = part * PART + tl.arange(0, PART)
    m_t = o_t < length
    p_x += first.to(tl.int64) * x_stride
    p_x += o_t.to(tl.int64)[:, None] * x_stride + o_c[None, :]
    b_y = tl.zeros([PART, DIM], tl.float32)
    for j in tl.static_range(4):
        m_j = (o_t >= 3 - j) & (o_t + (j - 3) < length)
        b_x = tl.load(p_x + (j - 3) * x_stride, mask=m_j[:, None], other=0.0).to(tl.float32)
        b_y += b_x * tl.load(p_weight + o_c * 4 + j).to(tl.float32)[None, :]
    if EDGE:
        if length == 0:
            return
        p_h = p_state + tl.load(p_slots + row).to(tl.int64) * slot_stride
        started = tl.load(p_starts + row) > 0
        for j in tl.static_range(3):
            m_j = (o_t + j < 3) & started
            p_j = p_h + o_c[None, :] * 3 + (o_t + j)[:, None]
            b_h = tl.load(p_j, mask=m_j[:, None], other=0.0).to(tl.float32)
            b_y += b_h * tl.load(p_weight + o_c * 4 + j).to(tl.float32)[None, :]
        p_h += o_c[None, :] * 3
        kept = tl.load(p_keeps + row * 2)
        if kept > 0:
            p_kept = p_state + tl.load(p_keeps + row * 2 + 1).to(tl.int64) * slot_stride
            b_kept = _last_inputs(p_x, p_h, o_t, kept, x_stride, started)
            tl.store(p_kept + o_c[None, :] * 3 + o_t[:, None], b_kept, mask=(o_t < 3)[:, None])
        b_new = _last_inputs(p_x, p_h, o_t, length, x_stride, started)
        # NOTE: every thread has loaded before any stores.
        tl.debug_barrier()
        tl.store(p_h + o_t[:, None], b_new, mask=(o_t < 3)[:, None])
        m_t = m_t & (o_t < 3) & started
    b_y = b_y * tl.sigmoid(b_y)
    if UNIT:
        b_y = b_y.to(p_x.dtype.element_ty).to(tl.float32)
        b_y *= tl.rsqrt(tl.sum(b_y * b_y, 1) + 1e-6)[:, None]
    p_out = p_first_half
    if head >= HEADS:
        p_out = p_second_half
        head -= HEADS
    else:
        b_y *= scale
    p_out += ((first + o_t).to(tl.int64)[:, None] * HEADS + head) * DIM + o_d[None, :]
    tl.store(p_out, b_y.to(p_x.dtype.element_ty), mask=m_t[:, None])


@triton.jit
def _last_inputs(p_x, p_h, o_t, length, x_stride, started):
    """The state behind ``length`` tokens of a row. At i of ``o_t`` it is input ``length - 3 + i``:
    the row's own, or element ``length + i`` of the old state. ``p_x``: the row's tokens ``o_t``;
    ``p_h``: the old state."""
    o_new = length - 3 + o_t
    p_new = p_x + (length - 3).to(tl.int64) * x_stride
    b_new = tl.load(p_new, mask=((o_t < 3) & (o_new >= 0))[:, None], other=0.0)
    m_old = (o_t < 3) & (o_new < 0) & started
    b_old = tl.load(p_h + (o_t + length)[:, None], mask=m_old[:, None], other=0.0)
    return tl.where((o_new >= 0)[:, None], b_new, b_old)
