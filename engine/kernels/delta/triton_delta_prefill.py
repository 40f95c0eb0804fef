"""Gated delta rule over packed prefill chunks, in blocks of 64 tokens.

Notation of torch_delta_rule.py: G the running sum of g in a block, D_ij = exp(G_i - G_j) for
j <= i, L = strictly_lower(beta_i (k_i . k_j) D_ij). All blocks at once (``_blocks_kernel``):

    A = (I + L)^-1 diag(beta);   P = (q k^T) * D

then along each sequence, a head's columns of the state S in registers (``_scan_kernel``):

    U = A (v - exp(G) k S);   o = exp(G) q S + P U;   S <- exp(G_last) S + k^T (exp(G_last - G) U)

Products take operands in the activations' dtype and add up in float32; S is float32. Block size and
tiles do not depend on the batch, so a chunk's bits depend only on its own tokens and state.

(I + L)^-1 grows from blocks of one row to the whole, doubling each time: for neighbours X, Y

    [X 0; M Y]^-1 = [X' 0; -Y' M X' Y'],   for all pairs at once:   Z <- Z - Z M Z

where Z is diagonal in blocks. Unlike powers of L, Z stays small: its entries are k_i^T H k_j of
products H of contractions, at most 1. So float16, finer than bfloat16, suffices for the products.
Source: Gated DeltaNet (arXiv:2412.06464).

Reference: torch_delta_rule.chunked; test: tests/kernels/delta/test_delta.py, test_keep.py.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
import torch
import triton
import triton.language as tl

from engine.gpu_arch import has_small_shared_memory
from engine.kernels.batch.triton_prefill_plan import BLOCK, PrefillPlan
from engine.kernels.triton_arch import arch_of


def delta_prefill(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    b: torch.Tensor,
    a: torch.Tensor,
    neg_exp_a: torch.Tensor,
    dt_bias: torch.Tensor,
    state: torch.Tensor,
    state_slots: torch.Tensor,
    plan: PrefillPlan,
    *,
    block_columns: int = 0,
    num_warps: int = 4,
    num_stages: int = 0,
) -> torch.Tensor:
    """Compute the delta rule of chunks -> [tokens, v_heads, v_dim] like ``v``.

    ``state`` [state slots, v_heads, k_dim, v_dim] float32 is updated in place at ``state_slots``
    [rows]. States behind a row's first blocks that the plan ``keeps`` are stored too.

    q, k, v from ``conv_qkv``; b, a [tokens, v_heads] may be columns of a wider matrix; neg_exp_a,
    dt_bias [v_heads] float32. A row that starts at 0 begins from zeros without reading its slot,
    and one without tokens leaves its slot alone, whatever that is.
    """
    num_tokens, num_v_heads, v_dim = v.shape
    num_k_heads, k_dim = k.shape[1:]
    assert q.shape == k.shape == (num_tokens, num_k_heads, k_dim), (q.shape, k.shape, v.shape)
    assert q.is_contiguous()
    assert k.is_contiguous()
    assert v.is_contiguous()
    assert b.stride() == a.stride(), (b.stride(), a.stride())
    assert b.shape == a.shape == (num_tokens, num_v_heads), (b.shape, a.shape)
    assert b.stride(1) == 1, b.stride()
    assert state.dtype == torch.float32, state.dtype
    assert state.stride()[1:] == (k_dim * v_dim, v_dim, 1), state.stride()
    assert num_tokens == plan.num_tokens, (num_tokens, plan.num_tokens)
    if not block_columns:
        # Few rows: more programs. A column's bits do not depend on that.
        block_columns = min(32 if plan.starts.shape[0] <= 2 else 64, v_dim)
    num_stages = num_stages or (2 if has_small_shared_memory(arch_of(v)) else 3)
    num_blocks = plan.block_rows.shape[0]
    inverse = v.new_empty(num_blocks, num_v_heads, BLOCK, BLOCK)
    scores = torch.empty_like(inverse)
    total = torch.empty(num_blocks, num_v_heads, BLOCK, device=v.device)
    group = num_v_heads // num_k_heads
    # More programs at once hide the latency of the chain of products.
    crowded = {"maxnreg": 128} if v.is_cuda else {}
    _blocks_kernel[(num_v_heads, num_blocks)](
        q, k, b, a, neg_exp_a, dt_bias, inverse, scores, total,
        plan.firsts, plan.block_firsts, plan.block_rows, b.stride(0),
        NUM_V_HEADS=num_v_heads, GROUP=group, K_DIM=k_dim, BLOCK=BLOCK, num_warps=4,
        **crowded,
    )  # fmt: skip
    out = torch.empty_like(v)
    _scan_kernel[(v_dim // block_columns, num_v_heads, plan.starts.shape[0])](
        q, k, v, inverse, scores, total, out, state, state_slots,
        plan.firsts, plan.block_firsts, plan.starts, plan.keeps, state.stride(0),
        NUM_V_HEADS=num_v_heads, GROUP=group, K_DIM=k_dim, V_DIM=v_dim, BLOCK=BLOCK,
        COLUMNS=block_columns, STAGES=num_stages, num_warps=num_warps,
    )  # fmt: skip
    return out


@triton.jit
def _blocks_kernel(
    p_q,
    p_k,
    p_b,
    p_a,
    p_neg_exp_a,
    p_dt_bias,
    p_inverse,
    p_scores,
    p_total,
    p_firsts,
    p_block_firsts,
    p_block_rows,
    gate_stride,
    NUM_V_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    K_DIM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    head = tl.program_id(0)
    block = tl.program_id(1)
    row = tl.load(p_block_rows + block)
    first = tl.load(p_firsts + row)
    end = tl.load(p_firsts + row + 1)
    o_i = tl.arange(0, BLOCK)
    o_t = first + (block - tl.load(p_block_firsts + row)) * BLOCK + o_i
    m_t = o_t < end
    o_t = o_t.to(tl.int64)
    o_qk = (o_t * (NUM_V_HEADS // GROUP) + head // GROUP)[:, None] * K_DIM
    o_qk += tl.arange(0, K_DIM)[None, :]
    b_k = tl.load(p_k + o_qk, mask=m_t[:, None], other=0.0)
    b_q = tl.load(p_q + o_qk, mask=m_t[:, None], other=0.0)

    b_a = tl.load(p_a + o_t * gate_stride + head, mask=m_t, other=0.0).to(tl.float32)
    b_b = tl.load(p_b + o_t * gate_stride + head, mask=m_t, other=0.0).to(tl.float32)
    b_a += tl.load(p_dt_bias + head)
    b_g = tl.load(p_neg_exp_a + head) * tl.where(b_a > 20.0, b_a, tl.log(1.0 + tl.exp(b_a)))
    b_beta = tl.where(m_t, tl.sigmoid(b_b), 0.0)
    b_total = tl.cumsum(tl.where(m_t, b_g, 0.0), 0)
    o_block = (block * NUM_V_HEADS + head).to(tl.int64)
    tl.store(p_total + o_block * BLOCK + o_i, b_total)

    m_past = o_i[:, None] >= o_i[None, :]
    b_decay = tl.exp(tl.where(m_past, b_total[:, None] - b_total[None, :], float("-inf")))
    o_square = o_block * (BLOCK * BLOCK) + o_i[:, None] * BLOCK + o_i[None, :]
    b_scores = tl.dot(b_q, tl.trans(b_k)) * b_decay
    tl.store(p_scores + o_square, b_scores.to(p_scores.dtype.element_ty))

    b_lower = tl.dot(b_k, tl.trans(b_k)) * b_decay * b_beta[:, None]
    b_lower = tl.where(o_i[:, None] > o_i[None, :], b_lower, 0.0)
    b_inverse = _inverse(b_lower, BLOCK, 6, p_k.dtype.element_ty == tl.float32) * b_beta[None, :]
    tl.store(p_inverse + o_square, b_inverse.to(p_inverse.dtype.element_ty))


@triton.jit
def _inverse(b_lower, BLOCK: tl.constexpr, LOG_BLOCK: tl.constexpr, EXACT: tl.constexpr):
    """(I + b_lower)^-1 of a strictly lower [BLOCK, BLOCK]."""
    o_i = tl.arange(0, BLOCK)
    b_x = (o_i[:, None] == o_i[None, :]).to(tl.float32)
    for log_size in tl.static_range(LOG_BLOCK):
        o_part = o_i >> log_size
        m_pair = (o_part[:, None] == o_part[None, :] + 1) & (o_part[None, :] % 2 == 0)
        b_corner = tl.where(m_pair, b_lower, 0.0)
        if log_size > 0:
            b_corner = _product(_product(b_x, b_corner, EXACT), b_x, EXACT)
        b_x -= b_corner
    return b_x


@triton.jit
def _product(b_left, b_right, EXACT: tl.constexpr):
    if EXACT:
        return tl.dot(b_left, b_right, input_precision="ieee")
    return tl.dot(b_left.to(tl.float16), b_right.to(tl.float16))


@triton.jit
def _scan_kernel(
    p_q,
    p_k,
    p_v,
    p_inverse,
    p_scores,
    p_total,
    p_out,
    p_state,
    p_slots,
    p_firsts,
    p_block_firsts,
    p_starts,
    p_keeps,
    slot_stride,
    NUM_V_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    K_DIM: tl.constexpr,
    V_DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    COLUMNS: tl.constexpr,
    STAGES: tl.constexpr,
):
    head = tl.program_id(1)
    row = tl.program_id(2)
    first = tl.load(p_firsts + row)
    length = tl.load(p_firsts + row + 1) - first
    block_first = tl.load(p_block_firsts + row)
    num_blocks = tl.load(p_block_firsts + row + 1) - block_first
    if num_blocks == 0:
        return
    o_i = tl.arange(0, BLOCK)
    o_k = tl.arange(0, K_DIM)
    o_v = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    p_state += head * (K_DIM * V_DIM) + o_k[:, None] * V_DIM + o_v[None, :]
    o_own = tl.load(p_slots + row).to(tl.int64) * slot_stride
    b_s = tl.zeros([K_DIM, COLUMNS], tl.float32)
    if tl.load(p_starts + row) > 0:
        b_s = tl.load(p_state + o_own)

    o_block = (block_first * NUM_V_HEADS + head).to(tl.int64)
    p_total += o_block * BLOCK + o_i
    o_square = o_block * (BLOCK * BLOCK) + o_i[:, None] * BLOCK + o_i[None, :]
    p_inverse += o_square
    p_scores += o_square
    o_t = (first + o_i).to(tl.int64)
    o_qk = (o_t * (NUM_V_HEADS // GROUP) + head // GROUP)[:, None] * K_DIM + o_k[None, :]
    p_q += o_qk
    p_k += o_qk
    o_out = (o_t * NUM_V_HEADS + head)[:, None] * V_DIM + o_v[None, :]
    p_v += o_out
    p_out += o_out
    kept_blocks = tl.cdiv(tl.load(p_keeps + row * 2), BLOCK)
    o_kept = tl.load(p_keeps + row * 2 + 1).to(tl.int64) * slot_stride
    # First the blocks before a kept state, if any, then the others: a test per block would cost
    # more.
    for part in tl.range(tl.where(kept_blocks > 0, 0, 1), 2):
        begin = tl.where(part == 0, 0, kept_blocks)
        end = tl.where(part == 0, kept_blocks, num_blocks)
        for block in tl.range(begin, end, num_stages=STAGES):
            m_t = (block * BLOCK + o_i < length)[:, None]
            o_step = tl.full([], BLOCK, tl.int64) * block
            b_k = tl.load(p_k + o_step * (NUM_V_HEADS // GROUP * K_DIM), mask=m_t, other=0.0)
            b_q = tl.load(p_q + o_step * (NUM_V_HEADS // GROUP * K_DIM), mask=m_t, other=0.0)
            b_v = tl.load(p_v + o_step * (NUM_V_HEADS * V_DIM), mask=m_t, other=0.0)
            b_inverse = tl.load(p_inverse + o_step * (NUM_V_HEADS * BLOCK))
            b_scores = tl.load(p_scores + o_step * (NUM_V_HEADS * BLOCK))
            b_total = tl.load(p_total + o_step * NUM_V_HEADS)
            b_last = tl.min(b_total, 0)
            b_grown = tl.exp(b_total)
            b_h = b_s.to(b_k.dtype)
            b_u = b_v.to(tl.float32) - tl.dot(b_k, b_h) * b_grown[:, None]
            b_u = tl.dot(b_inverse, b_u.to(b_k.dtype))
            b_o = tl.dot(b_q, b_h) * b_grown[:, None]
            b_o = tl.dot(b_scores, b_u.to(b_k.dtype), b_o)
            tl.store(p_out + o_step * (NUM_V_HEADS * V_DIM), b_o.to(b_k.dtype), mask=m_t)
            b_u *= tl.exp(b_last - b_total)[:, None]
            b_s = tl.dot(tl.trans(b_k), b_u.to(b_k.dtype), b_s * tl.exp(b_last))
        tl.store(p_state + tl.where(part == 0, o_kept, o_own), b_s)
