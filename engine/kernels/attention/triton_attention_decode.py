"""Attention of one query a row over its pages, split along the context, then the output gate.

    o = sum_j softmax_j(q . k_j * scale) v_j;   out = o * sigmoid(gate),  or o without a gate

A row's context is cut into chunks: at most ``MAX_CHUNKS``, each of ``blocks_each`` blocks. Each
chunk gives (m, l, o): the largest score, the sum of exp(score - m) and the sum of exp(score - m) v
(Flash-Decoding). A second kernel adds them up in order, so the result depends only on the row's own
length, not on the other rows of a step. Scores are in units of log 2.

Chunks that several rows have in common are read once for up to ``TILE_ROWS`` heads of them
(shared_reads.py), with the same bits: each row of a product on tensor cores is computed by itself.

Reference: torch_attention.attend_decode; test: tests/kernels/attention/test_attention.py.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from engine.kernels import shared_reads
from engine.kernels.attention.triton_attention_chunks import (
    CHUNKS,
    NARROW,
    attend_row_blocks,
    attend_row_chunks,
    attend_tile_chunks,
    chunks_of,
)
from engine.kernels.attention.triton_attention_prefill import LOG2_E
from engine.kernels.formats.triton_split import PARTS, Split, store_group
from engine.kernels.shared_reads import MAX_CHUNKS, SharedReads
from engine.kernels.triton_head import tile_width
from engine.kernels.triton_overlap import LOADS_FIRST, overlap, wait_for_inputs

MERGED = tl.constexpr(16)
"""Number of chunks that are loaded and added up at a time."""
MIN_HEADS = 16
"""Rows of the smallest tensor-core tile; a smaller group of heads is padded to it."""
FOUR_PROGRAMS = {"maxnreg": 128}
"""Launch arguments for narrow heads: registers for four programs on a multiprocessor. ptxas would
use 190 a thread for chunks that rows have in common, which leaves room for two."""
SHARED_PROGRAMS = 512
"""Number of programs that compute the chunks which rows have in common."""


@dataclass(frozen=True)
class AttentionWorkspace:
    """Scratch of ``attention_decode``; calls on one stream may share it.

    ``partials`` [rows, MAX_CHUNKS, heads, tile_width(head_dim)] and ``stats`` [rows, MAX_CHUNKS,
    heads, 2] float32.
    """

    partials: torch.Tensor
    stats: torch.Tensor

    @classmethod
    def allocate(
        cls, max_rows: int, num_heads: int, head_dim: int, device: torch.device
    ) -> "AttentionWorkspace":
        return cls(
            torch.empty(max_rows, MAX_CHUNKS, num_heads, tile_width(head_dim), device=device),
            torch.empty(max_rows, MAX_CHUNKS, num_heads, 2, device=device),
        )


def programs_for(num_rows: int, width: int) -> int:
    """Number of programs per row and KV head that fill the GPU, with heads padded to ``width``;
    they share the row's chunks."""
    if width <= NARROW.value:
        wanted = max(8, 256 // num_rows)
    else:  # behind a common prefix rows have few chunks, which fewer programs divide unevenly
        wanted = max(2, 128 // num_rows, min(16, 512 // num_rows))
    return min(wanted, MAX_CHUNKS)


def attention_decode(
    q: torch.Tensor,
    gate: torch.Tensor | None,
    kv: torch.Tensor,
    layer: int,
    block_tables: torch.Tensor,
    ends: torch.Tensor,
    workspace: AttentionWorkspace,
    *,
    split: Split | None = None,
    shared: SharedReads | None = None,
    scale: float | None = None,
    window: int | None = None,
    num_programs: int = 0,
    block: int = shared_reads.BLOCK,
    num_warps: int = 4,
    num_stages: int = 2,
) -> torch.Tensor:
    """Attend to each row's pages -> [rows, heads * head_dim] in ``q``'s dtype.

    q [rows, heads, head_dim]; gate [rows, heads * head_dim], which may be columns of a wider
    matrix, or None; kv [pages, layers, 2, page_size, kv_heads, head_dim]; block_tables [rows,
    pages]; ends [rows] is the tokens in the cache, this step's among them. Rows with end 0 yield
    zeros. Memory past a row's end is not read. ``split`` also receives the result split in two,
    with groups of columns within a head. ``scale``: None for ``head_dim ** -0.5``.
    ``window``: attend to the last so many tokens, and read no page before them; None: to all.
    ``shared`` (what rows read together; not with a window) and ``num_programs`` (0: by the number
    of rows) do not change the result.
    """
    num_rows, num_heads, head_dim = q.shape
    page_size, num_kv_heads = kv.shape[3:5]
    width = tile_width(head_dim)
    assert kv.shape[5] == head_dim, (kv.shape, q.shape)
    assert q.is_contiguous()
    assert kv[0].is_contiguous()
    assert gate is None or gate.shape == (num_rows, num_heads * head_dim), (gate.shape, q.shape)
    assert gate is None or gate.stride(1) == 1, gate.stride()
    assert block_tables.stride(1) == 1, block_tables.stride()
    assert ends.shape == (num_rows,), ends.shape
    assert ends.is_contiguous()
    block = min(block, page_size)
    assert page_size % block == 0, (page_size, block)
    assert workspace.partials.shape[0] >= num_rows, workspace.partials.shape
    assert workspace.partials.shape[2:] == (num_heads, width), workspace.partials.shape
    out = q.new_empty(num_rows, num_heads * head_dim)
    dims_each, merging_warps = min(64, head_dim & -head_dim), 2  # dims: a power of two
    if split is not None:
        dims_each = out.shape[1] // split.num_groups
        assert split.is_of_rows(out, split.num_groups)
        assert head_dim % dims_each == 0, (head_dim, dims_each)
    elif head_dim == 128:
        dims_each, merging_warps = 128, 1  # 6.3 us for 128 rows of 32 heads on an H200, not 11.0
    if num_rows == 0:
        return out
    group = num_heads // num_kv_heads
    num_programs = num_programs or programs_for(num_rows, width)
    own = tiles = items = num_items = ends
    members = num_shared = 0
    if shared is not None:
        own, tiles, items, num_items = shared.own, shared.tiles, shared.items, shared.num_items
        members = shared_reads.rows_of_tile(num_heads, num_kv_heads)
        assert own.shape[0] >= num_rows, own.shape
        assert tiles.shape[1] == 1 + members, tiles.shape
        assert window is None, "rows with a window read no chunks together"
        if num_rows > 1:
            num_shared = triton.cdiv(SHARED_PROGRAMS, num_kv_heads * num_programs)
    _chunk_kernel[(num_programs, num_kv_heads, num_shared + num_rows)](
        q, kv, block_tables, ends, workspace.partials, workspace.stats,
        own, tiles, items, num_items,
        block_tables.stride(0), kv.stride(0), layer * kv.stride(1), kv.stride(2),
        (head_dim**-0.5 if scale is None else scale) * LOG2_E, num_shared,
        HEADS=num_heads, KV_HEADS=num_kv_heads, GROUP=group,
        ROWS=max(MIN_HEADS, triton.next_power_of_2(group)),
        DIM=head_dim, WIDTH=width, PAGE=page_size, BLOCK=block, STAGES=num_stages,
        WINDOW=window or 0, MEMBERS=members, PADDED=triton.next_power_of_2(group),
        num_warps=num_warps, **(FOUR_PROGRAMS if width <= NARROW.value else {}), **overlap(q),
    )  # fmt: skip
    _merge_kernel[(num_heads * head_dim // dims_each, num_rows)](
        workspace.partials, workspace.stats, out if gate is None else gate, ends, out,
        out if split is None else split.q, out if split is None else split.s,
        0 if gate is None else gate.stride(0), GATED=gate is not None,
        HEADS=num_heads, DIM=head_dim, WIDTH=width, DIMS=dims_each, BLOCK=block,
        IS_SPLIT=split is not None, WINDOW=window or 0, num_warps=merging_warps, **LOADS_FIRST,
        **overlap(q),
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["num_shared"])
def _chunk_kernel(
    p_q,
    p_kv,
    p_tables,
    p_ends,
    p_partials,
    p_stats,
    p_own,
    p_tiles,
    p_items,
    p_num_items,
    table_stride,
    page_stride,
    layer_offset,
    v_offset,
    scale,
    num_shared,
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
    MEMBERS: tl.constexpr,
    PADDED: tl.constexpr,
    PDL: tl.constexpr,
):
    """The first ``num_shared`` programs of the last axis compute items, the others a row each."""
    wait_for_inputs(PDL)
    row = tl.program_id(2) - num_shared
    if row >= 0:
        if WIDTH <= NARROW:
            attend_row_blocks(
                p_q, p_kv, p_tables, p_ends, p_partials, p_stats, p_own, row,
                table_stride, page_stride, layer_offset, v_offset, scale,
                HEADS, KV_HEADS, GROUP, ROWS, DIM, WIDTH, PAGE, BLOCK, STAGES, WINDOW, MEMBERS > 0,
            )  # fmt: skip
        else:
            attend_row_chunks(
                p_q, p_kv, p_tables, p_ends, p_partials, p_stats, p_own, row,
                table_stride, page_stride, layer_offset, v_offset, scale,
                HEADS, KV_HEADS, GROUP, ROWS, DIM, WIDTH, PAGE, BLOCK, STAGES, WINDOW, MEMBERS > 0,
            )  # fmt: skip
    elif MEMBERS > 0:
        attend_tile_chunks(
            p_q, p_kv, p_tables, p_ends, p_partials, p_stats, p_tiles, p_items, p_num_items,
            tl.program_id(2) * tl.num_programs(0) + tl.program_id(0),
            num_shared * tl.num_programs(0),
            table_stride, page_stride, layer_offset, v_offset, scale,
            HEADS, KV_HEADS, GROUP, DIM, WIDTH, PAGE, BLOCK, STAGES, MEMBERS, PADDED,
        )  # fmt: skip


@triton.jit
def _merge_kernel(
    p_partials,
    p_stats,
    p_gate,
    p_ends,
    p_out,
    p_q,
    p_s,
    gate_stride,
    GATED: tl.constexpr,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    DIMS: tl.constexpr,
    BLOCK: tl.constexpr,
    IS_SPLIT: tl.constexpr,
    WINDOW: tl.constexpr,
    PDL: tl.constexpr,
):
    """Merge the chunks of DIMS dims of one head of one row, then apply the gate, if any."""
    column, row = tl.program_id(0) * DIMS, tl.program_id(1).to(tl.int64)
    head = column // DIM
    o_d = column % DIM + tl.arange(0, DIMS)
    used, _ = chunks_of(tl.load(p_ends + row).to(tl.int32), BLOCK, WINDOW)
    if GATED:
        b_gate = tl.load(p_gate + row * gate_stride + head * DIM + o_d).to(tl.float32)
    o_s = tl.arange(0, CHUNKS)
    m_s = o_s < used
    o_in = (row * CHUNKS + o_s) * HEADS + head
    wait_for_inputs(PDL)
    b_max = tl.load(p_stats + o_in * 2, mask=m_s, other=float("-inf"))
    b_sum = tl.load(p_stats + o_in * 2 + 1, mask=m_s, other=0.0)
    max_all = tl.max(b_max, 0)
    b_o = tl.zeros([DIMS], tl.float32)
    # Few contexts have all chunks: registers for all would leave room for few programs.
    for first in range(0, used, MERGED):
        o_m = first + tl.arange(0, MERGED)
        m_m = o_m < used
        o_part = (row * CHUNKS + o_m) * HEADS + head
        b_part_max = tl.load(p_stats + o_part * 2, mask=m_m, other=float("-inf"))
        p_part = p_partials + o_part[:, None] * WIDTH + o_d[None, :]
        b_part = tl.load(p_part, mask=m_m[:, None], other=0.0)
        b_o += tl.sum(b_part * tl.exp2(b_part_max - max_all)[:, None], 0)
    b_o /= tl.sum(b_sum * tl.exp2(b_max - max_all), 0)
    if GATED:
        b_o *= tl.sigmoid(b_gate)
    b_o = tl.where(used > 0, b_o, 0.0)
    b_out = b_o.to(p_out.dtype.element_ty)
    tl.store(p_out + (row * HEADS + head) * DIM + o_d, b_out)
    if IS_SPLIT:
        COLUMNS: tl.constexpr = HEADS * DIM
        p_q += row * (PARTS * COLUMNS) + head * DIM + o_d
        p_s += row * tl.num_programs(0) + tl.program_id(0)
        store_group(b_out.to(tl.float32), p_q, p_s, o_d < DIM, COLUMNS)
