"""Attention to chunks of a context, for the kernel of triton_attention_decode.py.

A program takes chunks of one row, or chunks that several rows have in common (shared_reads.py).

Reference: torch_attention.attend_decode; test: tests/kernels/attention/test_attention.py,
test_shared_reads.py.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
import triton
import triton.language as tl

from engine.kernels import shared_reads
from engine.kernels.shared_reads import MAX_CHUNKS, MIN_BLOCKS
from engine.kernels.triton_head import within

CHUNKS, BLOCKS = tl.constexpr(MAX_CHUNKS), tl.constexpr(MIN_BLOCKS)
CHUNK_BITS = tl.constexpr(shared_reads.CHUNK_BITS)
CHUNK_MASK = tl.constexpr((1 << shared_reads.CHUNK_BITS) - 1)
NARROW = tl.constexpr(128)
"""Programs of heads of up to so many dimensions fit four times into a multiprocessor's shared
memory. Of wider ones, the chunks of a single row are slower in one loop."""


@triton.jit
def chunks_of(end, BLOCK: tl.constexpr, WINDOW: tl.constexpr):
    """(number of chunks, blocks per chunk) of a context of ``end`` tokens, as ``blocks_each``; from
    the block on in which the window begins."""
    num_blocks = tl.cdiv(end, BLOCK)
    if WINDOW > 0:
        num_blocks -= tl.maximum(end - WINDOW, 0) // BLOCK
    least = tl.maximum(tl.cdiv(num_blocks, CHUNKS), BLOCKS)
    power = least - 1
    power |= power >> 1
    power |= power >> 2
    power |= power >> 4
    power |= power >> 8
    power += 1
    blocks_each = tl.where(power * 3 // 4 >= least, power * 3 // 4, power)
    return tl.cdiv(num_blocks, blocks_each), blocks_each


@triton.jit
def _load_queries(
    p_q, b_row, b_head, b_valid, HEADS: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr
):
    """Query heads ``b_head`` of ``b_row``, [heads, WIDTH]; 0 where there are none."""
    o_d = tl.arange(0, WIDTH)
    b_place = b_row.to(tl.int64) * HEADS + b_head
    m_q = within(b_valid[:, None], o_d, DIM)
    return tl.load(p_q + b_place[:, None] * DIM + o_d[None, :], mask=m_q, other=0.0)


@triton.jit
def _add_block(
    b_o,
    b_max,
    b_sum,
    p_kv,
    p_table,
    b_q,
    o_kv,
    j,
    high,
    b_high,
    begin,
    page_stride,
    v_offset,
    scale,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """Add the tokens from ``j`` on to a chunk's (o, m, l): BLOCK of them, below ``high`` and each
    query's ``b_high``; with a window only from ``begin`` on."""
    o_d, o_j = tl.arange(0, b_q.shape[1]), tl.arange(0, BLOCK)
    page = tl.load(p_table + j // PAGE).to(tl.int64)
    p_k = p_kv + page * page_stride + (j % PAGE) * (KV_HEADS * DIM) + o_kv
    m_j = j + o_j < high
    if WINDOW > 0:
        m_j &= j + o_j >= begin
    m_kv = within(m_j[:, None], o_d, DIM)
    b_k = tl.load(p_k, mask=m_kv, other=0.0)
    b_v = tl.load(p_k + v_offset, mask=m_kv, other=0.0)
    b_score = tl.dot(b_q, tl.trans(b_k)) * scale
    b_score = tl.where((j + o_j)[None, :] < b_high[:, None], b_score, float("-inf"))
    if WINDOW > 0:
        b_score = tl.where(m_j[None, :], b_score, float("-inf"))
    b_new = tl.maximum(b_max, tl.max(b_score, 1))
    b_p = tl.exp2(b_score - b_new[:, None])
    b_shrink = tl.exp2(b_max - b_new)
    b_sum = b_sum * b_shrink + tl.sum(b_p, 1)
    b_o = tl.dot(b_p.to(b_v.dtype), b_v, b_o * b_shrink[:, None])
    return b_o, b_new, b_sum


@triton.jit
def _store_chunk(
    p_partials, p_stats, b_o, b_max, b_sum, b_row, b_head, b_valid, chunk, HEADS: tl.constexpr
):
    """Store the (o, m, l) of ``chunk`` of query heads ``b_head`` of ``b_row``."""
    WIDTH: tl.constexpr = b_o.shape[1]
    o_out = (b_row.to(tl.int64) * CHUNKS + chunk) * HEADS + b_head
    o_d = tl.arange(0, WIDTH)
    tl.store(p_partials + o_out[:, None] * WIDTH + o_d[None, :], b_o, mask=b_valid[:, None])
    tl.store(p_stats + o_out * 2, b_max, mask=b_valid)
    tl.store(p_stats + o_out * 2 + 1, b_sum, mask=b_valid)


@triton.jit
def _attend_chunk(
    p_q,
    p_kv,
    p_table,
    p_partials,
    p_stats,
    b_row,
    b_head,
    b_valid,
    chunk,
    low,
    high,
    b_high,
    begin,
    kv_head,
    page_stride,
    layer_offset,
    v_offset,
    scale,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """Attend from query heads ``b_head`` of ``b_row`` to tokens from ``low`` to their ``b_high``,
    ``high`` at most, whose pages are in the table at ``p_table``; with a window only from ``begin``
    on."""
    o_d, o_j = tl.arange(0, WIDTH), tl.arange(0, BLOCK)
    b_q = _load_queries(p_q, b_row, b_head, b_valid, HEADS, DIM, WIDTH)
    o_kv = layer_offset + (o_j * KV_HEADS + kv_head)[:, None] * DIM + o_d[None, :]
    b_o = tl.zeros([b_row.shape[0], WIDTH], tl.float32)
    b_max = tl.full([b_row.shape[0]], float("-inf"), tl.float32)
    b_sum = tl.zeros([b_row.shape[0]], tl.float32)
    for j in tl.range(low, high, BLOCK, num_stages=STAGES):
        b_o, b_max, b_sum = _add_block(
            b_o, b_max, b_sum, p_kv, p_table, b_q, o_kv, j, high, b_high, begin,
            page_stride, v_offset, scale, KV_HEADS, DIM, PAGE, BLOCK, WINDOW,
        )  # fmt: skip
    _store_chunk(p_partials, p_stats, b_o, b_max, b_sum, b_row, b_head, b_valid, chunk, HEADS)


@triton.jit
def _chunks_of_row(
    p_ends, p_own, row, BLOCK: tl.constexpr, WINDOW: tl.constexpr, SHARES: tl.constexpr
):
    """(end, a program's first chunk, number of chunks, blocks per chunk) of what ``row`` reads
    itself."""
    first = tl.program_id(0)
    end = tl.load(p_ends + row).to(tl.int32)
    num_chunks, blocks_each = chunks_of(end, BLOCK, WINDOW)
    if SHARES:
        own = tl.load(p_own + 2 * row)
        first += tl.where(tl.load(p_own + 2 * row + 1) == blocks_each, own, 0)
    return end, first, num_chunks, blocks_each


@triton.jit
def attend_row_chunks(
    p_q,
    p_kv,
    p_tables,
    p_ends,
    p_partials,
    p_stats,
    p_own,
    row,
    table_stride,
    page_stride,
    layer_offset,
    v_offset,
    scale,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
    WINDOW: tl.constexpr,
    SHARES: tl.constexpr,
):
    """The chunks that ``row`` reads itself, one behind the other."""
    kv_head = tl.program_id(1)
    end, first, num_chunks, blocks_each = _chunks_of_row(p_ends, p_own, row, BLOCK, WINDOW, SHARES)
    o_g = tl.arange(0, ROWS)
    b_row = row + tl.zeros([ROWS], tl.int32)
    p_table = p_tables + row.to(tl.int64) * table_stride
    for chunk in range(first, num_chunks, tl.num_programs(0)):
        low = chunk * blocks_each * BLOCK
        if WINDOW > 0:
            low += tl.maximum(end - WINDOW, 0) // BLOCK * BLOCK
        high = tl.minimum(low + blocks_each * BLOCK, end)
        _attend_chunk(
            p_q, p_kv, p_table, p_partials, p_stats, b_row, kv_head * GROUP + o_g, o_g < GROUP,
            chunk, low, high, high + tl.zeros([ROWS], tl.int32), end - WINDOW, kv_head,
            page_stride, layer_offset, v_offset, scale,
            HEADS, KV_HEADS, DIM, WIDTH, PAGE, BLOCK, STAGES, WINDOW,
        )  # fmt: skip


@triton.jit
def attend_row_blocks(
    p_q,
    p_kv,
    p_tables,
    p_ends,
    p_partials,
    p_stats,
    p_own,
    row,
    table_stride,
    page_stride,
    layer_offset,
    v_offset,
    scale,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
    WINDOW: tl.constexpr,
    SHARES: tl.constexpr,
):
    """As ``attend_row_chunks``, with the same bits, in one loop over the blocks of all chunks: a
    chunk's loads begin while the one before it is computed."""
    kv_head, num_programs = tl.program_id(1), tl.num_programs(0)
    end, first, num_chunks, blocks_each = _chunks_of_row(p_ends, p_own, row, BLOCK, WINDOW, SHARES)
    begin = end * 0
    if WINDOW > 0:
        begin = tl.maximum(end - WINDOW, 0) // BLOCK * BLOCK
    mine = tl.maximum(tl.cdiv(num_chunks - first, num_programs), 0)
    past_mine = (first + (mine - 1) * num_programs + 1) * blocks_each
    missing = tl.maximum(past_mine - tl.cdiv(end - begin, BLOCK), 0)
    num_blocks = mine * blocks_each - missing
    o_g, o_d, o_j = tl.arange(0, ROWS), tl.arange(0, WIDTH), tl.arange(0, BLOCK)
    b_row = row + tl.zeros([ROWS], tl.int32)
    b_head, b_valid = kv_head * GROUP + o_g, o_g < GROUP
    b_q = _load_queries(p_q, b_row, b_head, b_valid, HEADS, DIM, WIDTH)
    p_table = p_tables + row.to(tl.int64) * table_stride
    o_kv = layer_offset + (o_j * KV_HEADS + kv_head)[:, None] * DIM + o_d[None, :]
    b_end = end + tl.zeros([ROWS], tl.int32)
    b_o = tl.zeros([ROWS, WIDTH], tl.float32)
    b_max = tl.full([ROWS], float("-inf"), tl.float32)
    b_sum = tl.zeros([ROWS], tl.float32)
    for i in tl.range(0, num_blocks, num_stages=STAGES):
        nth = i // blocks_each
        chunk, block = first + nth * num_programs, i - nth * blocks_each
        b_max = tl.where(block == 0, float("-inf"), b_max)  # sums before it are multiplied by 0
        b_o, b_max, b_sum = _add_block(
            b_o, b_max, b_sum, p_kv, p_table, b_q, o_kv,
            begin + (chunk * blocks_each + block) * BLOCK, end, b_end, end - WINDOW,
            page_stride, v_offset, scale, KV_HEADS, DIM, PAGE, BLOCK, WINDOW,
        )  # fmt: skip
        if (block == blocks_each - 1) | (i == num_blocks - 1):
            _store_chunk(
                p_partials, p_stats, b_o, b_max, b_sum, b_row, b_head, b_valid, chunk, HEADS
            )


@triton.jit
def attend_tile_chunks(
    p_q,
    p_kv,
    p_tables,
    p_ends,
    p_partials,
    p_stats,
    p_tiles,
    p_items,
    p_num_items,
    program,
    num_programs,
    table_stride,
    page_stride,
    layer_offset,
    v_offset,
    scale,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
    MEMBERS: tl.constexpr,
    PADDED: tl.constexpr,
):
    """Each ``num_programs``-th item from ``program`` on."""
    kv_head = tl.program_id(1)
    o_r = tl.arange(0, MEMBERS * PADDED)
    for place in range(program, tl.load(p_num_items), num_programs):
        item = tl.load(p_items + place)
        p_tile = p_tiles + (item >> CHUNK_BITS) * (1 + MEMBERS)
        chunk, blocks_each = item & CHUNK_MASK, tl.load(p_tile)
        b_row = tl.load(p_tile + 1 + o_r // PADDED)
        b_end = tl.load(p_ends + b_row, mask=b_row >= 0, other=0).to(tl.int32)
        b_num_chunks, b_blocks_each = chunks_of(b_end, BLOCK, 0)
        b_valid = (b_row >= 0) & (b_blocks_each == blocks_each) & (chunk < b_num_chunks)
        low = chunk * blocks_each * BLOCK
        b_high = tl.where(b_valid, tl.minimum(low + blocks_each * BLOCK, b_end), low)
        high = tl.max(b_high, 0)
        if high > low:
            row = tl.max(tl.where(b_valid, b_row, -1), 0)
            o_g = o_r % PADDED
            _attend_chunk(
                p_q, p_kv, p_tables + row.to(tl.int64) * table_stride, p_partials, p_stats,
                tl.maximum(b_row, 0), kv_head * GROUP + o_g, b_valid & (o_g < GROUP),
                chunk, low, high, b_high, low, kv_head,
                page_stride, layer_offset, v_offset, scale,
                HEADS, KV_HEADS, DIM, WIDTH, PAGE, BLOCK, STAGES, 0,
            )  # fmt: skip
