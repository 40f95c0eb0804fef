"""Causal attention of packed prefill chunks over their pages, then the output gate.

    o_i = sum_{j <= i} softmax_j(q_i . k_j * scale) v_j;   out = o * sigmoid(gate),  or o

A program takes ``tile_len`` queries of one row with the heads that share a KV head, as one tile of
matrix rows, and walks the row's pages with an online softmax (FlashAttention-2). Where all of these
heads make too large a tile, several programs divide them. The heads are padded to a power of two.
Blocks that every query sees whole come first, without masks; then the diagonal. Scores are in units
of log 2.

A short pass has too few tiles to fill the GPU, and behind a long context each takes long. Then the
context of a tile is divided among up to ``SPLITS`` programs, each with at least ``SPAN`` keys, and
a second kernel merges their partial results. So a chunk's last bits depend on its pass.

Reference: torch_attention.attend_prefill; test: tests/kernels/attention/test_attention.py.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
import torch
import triton
import triton.language as tl

from engine.gpu_arch import has_small_shared_memory
from engine.kernels.batch.triton_prefill_plan import PrefillPlan
from engine.kernels.triton_arch import arch_of
from engine.kernels.triton_head import load_rows, tile_width, within

LOG2_E = 1.4426950408889634
SPLITS = 8
SPAN = 2048
LOWEST = tl.constexpr(-1e30)
FEW_PROGRAMS = 96
"""With this many programs or fewer, some of the 132 multiprocessors of an H100 or H200 would be
idle."""
MAX_TILE = 128 * 256
"""The most elements of a tile of queries: 256 x 256 would not fit in a Hopper GPU's shared
memory."""


def attention_prefill(
    q: torch.Tensor,
    gate: torch.Tensor | None,
    kv: torch.Tensor,
    layer: int,
    block_tables: torch.Tensor,
    plan: PrefillPlan,
    *,
    scale: float | None = None,
    window: int | None = None,
    block: int = 0,
    num_warps: int = 8,
    num_stages: int = 2,
    span: int = SPAN,
) -> torch.Tensor:
    """Attend to the pages of each chunk's row -> [tokens, heads * head_dim] in ``q``'s dtype.

    q [tokens, heads, head_dim] of the rows in ``plan``, whose k and v are in the pages already;
    gate [tokens, heads * head_dim], which may be columns of a wider matrix, or None; kv [pages,
    layers, 2, page_size, kv_heads, head_dim]; block_tables [rows, pages]. ``scale``: None for
    ``head_dim ** -0.5``. ``window``: a query attends to so many tokens, the last one itself, and no
    page before them is read; None: to all. A prefix of any length may come
    before a chunk. Memory past a row's last token is not read into a result. ``block``: keys in a
    block; 0: by the GPU.
    """
    num_tokens, num_heads, head_dim = q.shape
    page_size, num_kv_heads = kv.shape[3:5]
    group = heads_at_once(num_heads // num_kv_heads, plan.tile_len, head_dim)
    assert kv.shape[5] == head_dim, (kv.shape, q.shape)
    assert num_tokens == plan.num_tokens, (num_tokens, plan.num_tokens)
    assert q.is_contiguous()
    assert kv[0].is_contiguous()
    assert gate is None or gate.shape == (num_tokens, num_heads * head_dim), (gate.shape, q.shape)
    assert gate is None or gate.stride(1) == 1, gate.stride()
    assert block_tables.stride(1) == 1, block_tables.stride()
    block = min(block or keys_at_once(q), page_size)
    assert page_size % block == 0, (page_size, block)
    padded = triton.next_power_of_2(group)
    assert padded * plan.tile_len >= 16, (group, plan.tile_len)
    out = q.new_empty(num_tokens, num_heads * head_dim)
    num_groups, num_tiles = num_heads // group, plan.tiles.shape[0]
    splits = SPLITS if num_groups * num_tiles <= FEW_PROGRAMS and window is None else 1
    shape = num_groups, num_tiles, splits, padded * plan.tile_len
    partials = stats = out
    if splits > 1:
        partials = torch.empty(*shape, tile_width(head_dim), dtype=torch.float32, device=q.device)
        stats = torch.empty(*shape, 2, dtype=torch.float32, device=q.device)
    shared = {
        "HEADS": num_heads, "KV_HEADS": num_kv_heads, "GROUP": group, "PADDED": padded,
        "DIM": head_dim, "WIDTH": tile_width(head_dim), "GATED": gate is not None,
        "TILE": plan.tile_len, "BLOCK": block, "SPAN": span, "SPLITS": splits,
    }  # fmt: skip
    places = plan.firsts, plan.starts, plan.tiles, 0 if gate is None else gate.stride(0)
    gates = out if gate is None else gate
    _prefill_kernel[(num_groups, num_tiles, splits)](
        q, gates, kv, out, partials, stats, block_tables, *places,
        block_tables.stride(0), kv.stride(0), layer * kv.stride(1), kv.stride(2),
        (head_dim**-0.5 if scale is None else scale) * LOG2_E,
        PAGE=page_size, STAGES=num_stages, WINDOW=window or 0, num_warps=num_warps, **shared,
    )  # fmt: skip
    if splits > 1:
        _merge_kernel[(num_groups, num_tiles, plan.tile_len)](
            gates, out, partials, stats, *places, num_warps=4, **shared
        )
    return out


def heads_at_once(group: int, tile_len: int, head_dim: int) -> int:
    """Number of the ``group`` heads that share a KV head in a tile of ``tile_len`` queries: all, or
    the largest part of them that makes no tile above MAX_TILE."""
    sizes = (size for size in range(group, 0, -1) if group % size == 0)
    width = tile_len * tile_width(head_dim)
    return next(size for size in sizes if triton.next_power_of_2(size) * width <= MAX_TILE)


def keys_at_once(q: torch.Tensor) -> int:
    """Number of keys in a block: fewer where two blocks in flight do not fit in shared memory."""
    is_small = has_small_shared_memory(arch_of(q))
    return 64 if q.shape[2] <= 128 or not is_small else 16


@triton.jit
def _attend(
    b_q,
    b_o,
    b_max,
    b_sum,
    b_position,
    p_k,
    p_tables,
    page_stride,
    v_offset,
    scale,
    low,
    high,
    end,
    KV_STRIDE: tl.constexpr,
    DIM: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
    MASKED: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """Attend to keys ``low`` to ``high``, a multiple of BLOCK apart; MASKED cuts at each query and
    at ``end``, and at the beginning of its window if there is one."""
    o_j, o_d = tl.arange(0, BLOCK), tl.arange(0, b_q.shape[1])
    for j in tl.range(low, high, BLOCK, num_stages=STAGES):
        page = tl.load(p_tables + j // PAGE).to(tl.int64)
        p_block = p_k + page * page_stride + (j % PAGE) * KV_STRIDE
        if MASKED:
            m_j = within((j + o_j < end)[:, None], o_d, DIM)
            b_k = tl.load(p_block, mask=m_j, other=0.0)
            b_v = tl.load(p_block + v_offset, mask=m_j, other=0.0)
        else:
            b_k = load_rows(p_block, o_d, DIM)
            b_v = load_rows(p_block + v_offset, o_d, DIM)
        b_score = tl.dot(b_q, tl.trans(b_k))
        if MASKED:
            m_seen = j + o_j[None, :] <= b_position[:, None]
            if WINDOW > 0:
                m_seen &= j + o_j[None, :] > b_position[:, None] - WINDOW
            b_score = tl.where(m_seen, b_score, float("-inf"))
        b_new = tl.maximum(b_max, tl.max(b_score, 1) * scale)
        if WINDOW > 0:  # a block may lie before a query's window
            b_new = tl.maximum(b_new, LOWEST)
        b_p = tl.exp2(b_score * scale - b_new[:, None])
        b_shrink = tl.exp2(b_max - b_new)
        b_sum = b_sum * b_shrink + tl.sum(b_p, 1)
        b_o = b_o * b_shrink[:, None]
        b_o = tl.dot(b_p.to(b_v.dtype), b_v, b_o)
        b_max = b_new
    return b_o, b_max, b_sum


@triton.jit
def _num_splits(whole, SPAN: tl.constexpr, SPLITS: tl.constexpr):
    """Number of programs among which ``whole`` keys are divided."""
    return tl.minimum(tl.maximum(whole // SPAN, 1), SPLITS)


@triton.jit(do_not_specialize=["table_stride"])
def _prefill_kernel(
    p_q,
    p_gate,
    p_kv,
    p_out,
    p_partials,
    p_stats,
    p_tables,
    p_firsts,
    p_starts,
    p_tiles,
    gate_stride,
    table_stride,
    page_stride,
    layer_offset,
    v_offset,
    scale,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    PADDED: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    GATED: tl.constexpr,
    PAGE: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
    SPAN: tl.constexpr,
    SPLITS: tl.constexpr,
    STAGES: tl.constexpr,
    WINDOW: tl.constexpr,
):
    # Of one KV head come HEADS / KV_HEADS heads, which are one group or more.
    group, split = tl.program_id(0), tl.program_id(2)
    kv_head = group // (HEADS // (KV_HEADS * GROUP))
    p_tile = p_tiles + tl.program_id(1) * 2
    row, query = tl.load(p_tile), tl.load(p_tile + 1)
    first = tl.load(p_firsts + row)
    length = tl.load(p_firsts + row + 1) - first
    start = tl.load(p_starts + row)
    # The first query of the tile sees every key of the blocks before ``whole``.
    whole = (start + query + 1) // BLOCK * BLOCK
    used = _num_splits(whole, SPAN, SPLITS)
    if split >= used:
        return
    o_row = tl.arange(0, TILE * PADDED)
    o_query = query + o_row // PADDED
    m_query = (o_query < length)[:, None]
    if PADDED != GROUP:
        m_query &= (o_row % PADDED < GROUP)[:, None]
    b_position = start + o_query
    o_d = tl.arange(0, WIDTH)
    m_query = within(m_query, o_d, DIM)
    o_token = (first + o_query).to(tl.int64)
    o_column = (group * GROUP + o_row % PADDED)[:, None] * DIM + o_d[None, :]
    o_q = o_token[:, None] * (HEADS * DIM) + o_column
    b_q = tl.load(p_q + o_q, mask=m_query, other=0.0)

    p_tables += row.to(tl.int64) * table_stride
    o_kv = (tl.arange(0, BLOCK) * KV_HEADS + kv_head)[:, None] * DIM + o_d[None, :]
    p_k = p_kv + layer_offset + o_kv
    b_o = tl.zeros([TILE * PADDED, WIDTH], tl.float32)
    b_max = tl.full([TILE * PADDED], float("-inf"), tl.float32)
    b_sum = tl.zeros([TILE * PADDED], tl.float32)
    end = start + tl.minimum(query + TILE, length)
    low, high = whole // BLOCK * split // used * BLOCK, whole // BLOCK * (split + 1) // used * BLOCK
    if WINDOW > 0:
        whole = tl.maximum(start + query + 1 - WINDOW, 0) // BLOCK * BLOCK
        high = low
    b_o, b_max, b_sum = _attend(
        b_q, b_o, b_max, b_sum, b_position, p_k, p_tables, page_stride, v_offset, scale,
        low, high, end, KV_HEADS * DIM, DIM, PAGE, BLOCK, STAGES, False, WINDOW,
    )  # fmt: skip
    b_o, b_max, b_sum = _attend(
        b_q, b_o, b_max, b_sum, b_position, p_k, p_tables, page_stride, v_offset, scale,
        whole, tl.where(split == used - 1, end, whole), end,
        KV_HEADS * DIM, DIM, PAGE, BLOCK, STAGES, True, WINDOW,
    )  # fmt: skip
    if used > 1:
        part = (group * tl.num_programs(1) + tl.program_id(1)).to(tl.int64) * SPLITS + split
        o_part = part * (TILE * PADDED) + o_row
        tl.store(p_partials + o_part[:, None] * WIDTH + o_d[None, :], b_o)
        tl.store(p_stats + o_part * 2, b_max)
        tl.store(p_stats + o_part * 2 + 1, b_sum)
        return
    if GATED:
        p_gate += o_token[:, None] * gate_stride + o_column
        b_gate = tl.load(p_gate, mask=m_query, other=0.0)
    b_o = b_o / b_sum[:, None]
    if GATED:
        b_o *= tl.sigmoid(b_gate.to(tl.float32))
    tl.store(p_out + o_q, b_o.to(p_out.dtype.element_ty), mask=m_query)


@triton.jit
def _merge_kernel(
    p_gate,
    p_out,
    p_partials,
    p_stats,
    p_firsts,
    p_starts,
    p_tiles,
    gate_stride,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    PADDED: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    GATED: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
    SPAN: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """Merge the heads of one query that are in one tile, if its context was divided."""
    group, of_tile = tl.program_id(0), tl.program_id(2)
    p_tile = p_tiles + tl.program_id(1) * 2
    row, first_query = tl.load(p_tile), tl.load(p_tile + 1)
    first = tl.load(p_firsts + row)
    length = tl.load(p_firsts + row + 1) - first
    whole = (tl.load(p_starts + row) + first_query + 1) // BLOCK * BLOCK
    used = _num_splits(whole, SPAN, SPLITS)
    query = first_query + of_tile
    if (used == 1) | (query >= length):
        return
    o_g, o_d = tl.arange(0, PADDED), tl.arange(0, WIDTH)
    part = (group * tl.num_programs(1) + tl.program_id(1)).to(tl.int64) * SPLITS
    b_o = tl.zeros([PADDED, WIDTH], tl.float32)
    b_max = tl.full([PADDED], float("-inf"), tl.float32)
    b_sum = tl.zeros([PADDED], tl.float32)
    for split in range(used):
        o_part = (part + split) * (TILE * PADDED) + of_tile * PADDED + o_g
        b_part = tl.load(p_partials + o_part[:, None] * WIDTH + o_d[None, :])
        b_part_max = tl.load(p_stats + o_part * 2)
        b_new = tl.maximum(b_max, b_part_max)
        b_shrink, b_part_shrink = tl.exp2(b_max - b_new), tl.exp2(b_part_max - b_new)
        b_o = b_o * b_shrink[:, None] + b_part * b_part_shrink[:, None]
        b_sum = b_sum * b_shrink + tl.load(p_stats + o_part * 2 + 1) * b_part_shrink
        b_max = b_new
    o_column = (group * GROUP + o_g)[:, None] * DIM + o_d[None, :]
    token = (first + query).to(tl.int64)
    m_head = within((o_g < GROUP)[:, None], o_d, DIM)
    b_o = b_o / b_sum[:, None]
    if GATED:
        b_gate = tl.load(p_gate + token * gate_stride + o_column, mask=m_head, other=0.0)
        b_o *= tl.sigmoid(b_gate.to(tl.float32))
    p_out += token * (HEADS * DIM) + o_column
    tl.store(p_out, b_o.to(p_out.dtype.element_ty), mask=m_head)
