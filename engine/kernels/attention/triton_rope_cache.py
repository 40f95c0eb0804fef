"""Norm and rotate q and k, and write k and v to their pages: one kernel before attention.

    x <- x / rms(x) * weight;   (x_i, x_{i+r/2}) <- rotated by position * inv_freq_i,  i < r/2

for every head of k and q (``weight`` is already the checkpoint's 1 + w); r is the rotary_dim. A
bias is added first. Heads of models without these norms are only rotated.

Reference: torch_norm.norm_rope; test: tests/kernels/attention/test_attention.py.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
import torch
import triton
import triton.language as tl

from engine.kernels.triton_head import load_dims, tile_width, within
from engine.kernels.triton_overlap import overlap, wait_for_inputs

MAX_ALONE = 128
"""Most tokens for which each token has a program of its own per head."""


def rope_cache(
    projected: torch.Tensor,
    weight: torch.Tensor,
    inv_freq: torch.Tensor,
    positions: torch.Tensor,
    token_rows: torch.Tensor | None,
    block_tables: torch.Tensor,
    kv: torch.Tensor,
    layer: int,
    eps: float,
    *,
    num_heads: int | None = None,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Write attention layer ``layer``'s k and v of each token -> q [tokens, heads, head_dim].

    projected [tokens, v | k | q (| gate)] in heads of head_dim; weight [kv_heads + heads, head_dim]
    float32, k first, or without rows for no norm, and then ``num_heads`` is given; ``bias``
    [(2 * kv_heads + heads) * head_dim] in ``projected``'s dtype; inv_freq [rotary_dim / 2] float32;
    positions [tokens], where -1 marks padding (nothing is read or written, its q is zero);
    token_rows [tokens] is each token's row of block_tables [rows, pages], None if token i is row i:
    then the kernel before this one must have written neither positions nor block_tables. kv is the
    page pool [pages, layers, 2, page_size, kv_heads, head_dim].
    """
    num_kv_heads, head_dim = kv.shape[4:]
    if num_heads is None:
        num_heads = weight.shape[0] - num_kv_heads
    assert weight.shape[0] in (0, num_heads + num_kv_heads), (weight.shape, num_heads)
    width = (num_heads + 2 * num_kv_heads) * head_dim
    assert projected.shape[1] in (width, width + num_heads * head_dim), (projected.shape, num_heads)
    assert bias is None or (bias.shape == (width,) and bias.is_contiguous()), bias.shape
    q = projected.new_empty(projected.shape[0], num_heads, head_dim)
    _launch(
        projected, q, weight, inv_freq, positions, token_rows, block_tables, kv, layer, eps, bias
    )
    return q


def cache_kv(
    projected: torch.Tensor,
    weight: torch.Tensor,
    inv_freq: torch.Tensor,
    positions: torch.Tensor,
    token_rows: torch.Tensor | None,
    block_tables: torch.Tensor,
    kv: torch.Tensor,
    layer: int,
    eps: float,
) -> None:
    """Write the k and v that ``rope_cache`` writes, of projected [tokens, v | k]."""
    num_kv_heads, head_dim = kv.shape[4:]
    assert projected.shape[1] == 2 * num_kv_heads * head_dim, (projected.shape, kv.shape)
    _launch(projected, None, weight, inv_freq, positions, token_rows, block_tables, kv, layer, eps)


def _launch(
    projected: torch.Tensor,
    q: torch.Tensor | None,
    weight: torch.Tensor,
    inv_freq: torch.Tensor,
    positions: torch.Tensor,
    token_rows: torch.Tensor | None,
    block_tables: torch.Tensor,
    kv: torch.Tensor,
    layer: int,
    eps: float,
    bias: torch.Tensor | None = None,
) -> None:
    num_tokens = projected.shape[0]
    page_size, num_kv_heads, head_dim = kv.shape[3:]
    num_heads = 0 if q is None else q.shape[1]
    assert weight.shape[1] == head_dim, (weight.shape, kv.shape)
    assert projected.stride(1) == 1, projected.stride()
    assert positions.shape == (num_tokens,), positions.shape
    assert positions.is_contiguous()
    assert block_tables.stride(1) == 1, block_tables.stride()
    assert kv[0].is_contiguous()
    assert kv.dtype == projected.dtype, (kv.dtype, projected.dtype)
    rotary_dim = 2 * inv_freq.shape[0]
    assert rotary_dim <= head_dim, (rotary_dim, head_dim)
    if num_tokens == 0:
        return
    tokens_each = 1 if num_tokens <= MAX_ALONE else 16
    _rope_kernel[(2 * num_kv_heads + num_heads, triton.cdiv(num_tokens, tokens_each))](
        projected, weight, inv_freq, positions,
        positions if token_rows is None else token_rows, block_tables, kv if q is None else q, kv,
        num_tokens, projected.stride(0), block_tables.stride(0), kv.stride(0),
        layer * kv.stride(1), kv.stride(2), eps, projected if bias is None else bias,
        NORMED=weight.shape[0] > 0, BIASED=bias is not None,
        HEADS=num_heads, KV_HEADS=num_kv_heads, DIM=head_dim, WIDTH=tile_width(head_dim),
        HALF=rotary_dim // 2, HALF_WIDTH=tile_width(rotary_dim // 2),
        PAGE=page_size, TOKENS=tokens_each, OWN_ROW=token_rows is None,
        num_warps=1 if tokens_each == 1 else 4,
        **overlap(projected),
    )  # fmt: skip


@triton.jit
def _add_bias(b_x, p_bias, o_d, m_live, DIM: tl.constexpr):
    """Add a bias to the rows of live tokens, rounded as a linear layer's result."""
    b_sum = b_x.to(tl.float32) + load_dims(p_bias + o_d, o_d, DIM).to(tl.float32)[None, :]
    return tl.where(m_live[:, None], b_sum, 0.0).to(b_x.dtype)


@triton.jit(do_not_specialize=["num_tokens", "table_stride"])
def _rope_kernel(
    p_x,
    p_weight,
    p_inv_freq,
    p_positions,
    p_token_rows,
    p_tables,
    p_q,
    p_kv,
    num_tokens,
    x_stride,
    table_stride,
    page_stride,
    layer_offset,
    v_offset,
    eps,
    p_bias,
    NORMED: tl.constexpr,
    BIASED: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    HALF: tl.constexpr,
    HALF_WIDTH: tl.constexpr,
    PAGE: tl.constexpr,
    TOKENS: tl.constexpr,
    OWN_ROW: tl.constexpr,
    PDL: tl.constexpr,
):
    """Norm, rotate and store one head of v, k or q (in this order) of TOKENS tokens."""
    head = tl.program_id(0)
    o_t = tl.program_id(1) * TOKENS + tl.arange(0, TOKENS)
    m_t = o_t < num_tokens
    is_v = head < KV_HEADS
    is_q = head >= 2 * KV_HEADS
    o_d, o_r = tl.arange(0, WIDTH), tl.arange(0, HALF_WIDTH)
    if NORMED:
        p_w = p_weight + tl.maximum(head - KV_HEADS, 0) * DIM
        b_w = load_dims(p_w + o_d, o_d, DIM)
        b_w1 = load_dims(p_w + o_r, o_r, HALF)
        b_w2 = load_dims(p_w + HALF + o_r, o_r, HALF)
    b_freq = load_dims(p_inv_freq + o_r, o_r, HALF)
    # For decode rows the predecessor has written neither the positions nor the tables.
    if not OWN_ROW:
        wait_for_inputs(PDL)
    b_position = tl.load(p_positions + o_t, mask=m_t, other=-1).to(tl.int32)
    m_live = b_position >= 0
    o_t = o_t.to(tl.int64)
    if is_q:
        p_out = p_q + ((o_t * HEADS + head - 2 * KV_HEADS) * DIM)[:, None]
        m_out = m_t[:, None]
    else:
        row = o_t
        if not OWN_ROW:
            row = tl.load(p_token_rows + o_t, mask=m_t, other=0).to(tl.int64)
        p_page = p_tables + row * table_stride + b_position // PAGE
        page = tl.load(p_page, mask=m_live, other=0).to(tl.int64)
        kv_head = head % KV_HEADS
        o_page = page * page_stride + layer_offset + is_v.to(tl.int64) * v_offset
        p_out = p_kv + (o_page + ((b_position % PAGE) * KV_HEADS + kv_head) * DIM)[:, None]
        m_out = m_live[:, None]
    b_angle = b_position.to(tl.float32)[:, None] * b_freq[None, :]
    b_cos, b_sin = tl.cos(b_angle), tl.sin(b_angle)
    if OWN_ROW:
        wait_for_inputs(PDL)

    p_x += o_t[:, None] * x_stride + head * DIM
    m_x = within(m_live[:, None], o_d, DIM)
    b_x = tl.load(p_x + o_d[None, :], mask=m_x, other=0.0)
    if BIASED:
        b_x = _add_bias(b_x, p_bias + head * DIM, o_d, m_live, DIM)
    if is_v:
        tl.store(p_out + o_d[None, :], b_x, mask=within(m_out, o_d, DIM))
    else:
        m_half = within(m_live[:, None], o_r, HALF)
        b_1 = tl.load(p_x + o_r[None, :], mask=m_half, other=0.0)
        b_2 = tl.load(p_x + HALF + o_r[None, :], mask=m_half, other=0.0)
        if BIASED:
            b_1 = _add_bias(b_1, p_bias + head * DIM, o_r, m_live, HALF)
            b_2 = _add_bias(b_2, p_bias + head * DIM + HALF, o_r, m_live, HALF)
        b_1, b_2 = b_1.to(tl.float32), b_2.to(tl.float32)
        if NORMED:
            b_wide = b_x.to(tl.float32)
            b_scale = tl.rsqrt(tl.sum(b_wide * b_wide, 1) / DIM + eps)[:, None]
            b_y = (b_wide * b_scale * b_w[None, :]).to(b_x.dtype)
            b_1 *= b_scale * b_w1[None, :]
            b_2 *= b_scale * b_w2[None, :]
        else:
            b_y = b_x
        m_rest = within(m_out & (o_d >= 2 * HALF)[None, :], o_d, DIM)
        tl.store(p_out + o_d[None, :], b_y, mask=m_rest)
        m_rotated = within(m_out, o_r, HALF)
        tl.store(p_out + o_r[None, :], (b_1 * b_cos - b_2 * b_sin).to(b_x.dtype), mask=m_rotated)
        p_out += HALF
        tl.store(p_out + o_r[None, :], (b_2 * b_cos + b_1 * b_sin).to(b_x.dtype), mask=m_rotated)
