"""Causal attention of prompts behind a deep context, in pieces (attention_pieces.py).

    rest    this file's kernel: the keys behind the pieces, new tokens included, with the mask
    pieces  ``unmasked``: new tokens of a row with the keys of a piece, gathered from the pages
    tail    triton_attention_prefill.py, for the last tokens of a row
    merge   o = sum_i o_i exp(l_i) / sum_i exp(l_i), with the logarithm l_i of the sum of part i's
            weights; then the output gate

The sum is kept in float32. Its last bits differ from those of a pass without pieces.
Reference: torch_attention.attend_prefill; test: tests/kernels/attention/test_attention_pieces.py.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from engine.kernels.attention.attention_pieces import Chunk, Cut, Piece
from engine.kernels.attention.triton_attention_prefill import (
    LOG2_E,
    _attend,
    attention_prefill,
    heads_at_once,
)
from engine.kernels.attention.unmasked import Unmasked
from engine.kernels.batch.triton_prefill_plan import PrefillPlan
from engine.upload import upload


@dataclass(frozen=True)
class DeepRows:
    """The rows of a pass that is computed in pieces. ``lens``: their new tokens; ``pieces`` and
    ``chunks``: of each row, none of a row that is not deep. ``skips`` int32 [rows]: keys that are
    in pieces. ``tails``: the plan of each row's tail, if it has one."""

    lens: Sequence[int]
    pieces: Sequence[Sequence[Piece]]
    chunks: Sequence[Sequence[Chunk]]
    skips: torch.Tensor
    tails: Sequence[PrefillPlan | None]

    @classmethod
    def of(
        cls, starts: Sequence[int], lens: Sequence[int], cut: Cut, device: torch.device
    ) -> "DeepRows":
        rows = list(zip(starts, lens, strict=True))
        pieces = [cut.pieces(start) if cut.is_deep(start, new) else [] for start, new in rows]
        chunks = [cut.chunks(new) if cut.is_deep(start, new) else [] for start, new in rows]
        tails = list[PrefillPlan | None]()
        for (start, num_new), of_row in zip(rows, chunks, strict=True):
            covered = sum(chunk.length for chunk in of_row)
            tail = [start + covered], [num_new - covered]
            tails.append(PrefillPlan.of(*tail, device) if covered < num_new else None)
        lengths = [sum(piece.length for piece in of_row) for of_row in pieces]
        skips = upload(torch.tensor(lengths, dtype=torch.int32), device)
        return cls(lens, pieces, chunks, skips, tails)


def attention_in_pieces(
    q: torch.Tensor,
    gate: torch.Tensor,
    kv: torch.Tensor,
    layer: int,
    block_tables: torch.Tensor,
    plan: PrefillPlan,
    rows: DeepRows,
    unmasked: Unmasked,
) -> torch.Tensor:
    """As triton_attention_prefill.attention_prefill, for ``rows``, which are those of ``plan``."""
    num_tokens, num_heads, head_dim = q.shape
    page_size, num_kv_heads = kv.shape[3:5]
    group = num_heads // num_kv_heads
    so_far = torch.empty(num_tokens, num_heads, head_dim, dtype=torch.float32, device=q.device)
    log_sums = torch.empty(num_tokens, num_heads, dtype=torch.float32, device=q.device)
    _rest(q, kv, layer, block_tables, plan, rows.skips, so_far, log_sums)
    out = q.new_empty(num_tokens, num_heads * head_dim)
    first = 0
    for row, (num_new, pieces, chunks) in enumerate(
        zip(rows.lens, rows.pieces, rows.chunks, strict=True)
    ):
        places = [(first + chunk.first, chunk) for chunk in chunks]
        packed = [
            _packed(q[here : here + chunk.length], num_kv_heads, chunk.padded)
            for here, chunk in places
        ]
        for piece in pieces:
            assert piece.length % page_size == 0, (piece, page_size)
            pages = block_tables[row, piece.first // page_size :][: piece.length // page_size]
            # [heads, keys, head_dim], a view of what is gathered in the order of the pages
            k, v = (
                kv[:, layer, part].index_select(0, pages).flatten(0, 1).transpose(0, 1)
                for part in (0, 1)
            )
            for (here, chunk), queries in zip(places, packed, strict=True):
                found, sums = unmasked.attend(queries, k, v)
                last = piece is pieces[-1]
                _merge_kernel[(chunk.length, num_heads)](
                    so_far, log_sums, found, sums, gate, out, here, gate.stride(0),
                    found.stride(0), found.stride(1), found.stride(2), sums.stride(0),
                    sums.stride(1), PARTS=found.shape[0], HEADS=num_heads, GROUP=group,
                    DIM=head_dim, LAST=last, num_warps=4,
                )  # fmt: skip
        first += num_new
        if (tail := rows.tails[row]) is not None:
            of = slice(first - tail.num_tokens, first)
            # NOTE: a copy, which is aligned: Triton compiles a kernel again for a pointer that is
            # not, and a row of the tables may begin anywhere.
            table = block_tables[row : row + 1].clone()
            out[of] = attention_prefill(q[of], gate[of], kv, layer, table, tail)
    return out


def _packed(q: torch.Tensor, num_kv_heads: int, padded: int) -> torch.Tensor:
    """The queries that share a KV head as its rows, [kv_heads, padded * group, head_dim]; those
    behind the last token are 0."""
    num_tokens, num_heads, head_dim = q.shape
    group = num_heads // num_kv_heads
    new = q.new_empty if num_tokens == padded else q.new_zeros
    packed = new(num_kv_heads, padded, group, head_dim)
    packed[:, :num_tokens] = q.view(num_tokens, num_kv_heads, group, head_dim).transpose(0, 1)
    return packed.view(num_kv_heads, padded * group, head_dim)


def _rest(
    q: torch.Tensor,
    kv: torch.Tensor,
    layer: int,
    block_tables: torch.Tensor,
    plan: PrefillPlan,
    skips: torch.Tensor,
    out: torch.Tensor,
    log_sums: torch.Tensor,
    *,
    block: int = 64,
    num_warps: int = 8,
    num_stages: int = 2,
) -> None:
    num_tokens, num_heads, head_dim = q.shape
    page_size, num_kv_heads = kv.shape[3:5]
    assert num_tokens == plan.num_tokens, (num_tokens, plan.num_tokens)
    assert q.is_contiguous()
    assert kv[0].is_contiguous()
    assert block_tables.stride(1) == 1, block_tables.stride()
    block = min(block, page_size)
    group = heads_at_once(num_heads // num_kv_heads, plan.tile_len, head_dim)
    _rest_kernel[(num_heads // group, plan.tiles.shape[0])](
        q, kv, out, log_sums, block_tables, plan.firsts, plan.starts, skips, plan.tiles,
        block_tables.stride(0), kv.stride(0), layer * kv.stride(1), kv.stride(2),
        head_dim**-0.5 * LOG2_E, HEADS=num_heads, KV_HEADS=num_kv_heads, GROUP=group,
        DIM=head_dim, PAGE=page_size, TILE=plan.tile_len, BLOCK=block, STAGES=num_stages,
        num_warps=num_warps,
    )  # fmt: skip


@triton.jit(do_not_specialize=["table_stride"])
def _rest_kernel(
    p_q,
    p_kv,
    p_out,
    p_log_sums,
    p_tables,
    p_firsts,
    p_starts,
    p_skips,
    p_tiles,
    table_stride,
    page_stride,
    layer_offset,
    v_offset,
    scale,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    PAGE: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):
    """A tile's attention to the keys of its row behind ``skips``, and the natural logarithm of its
    weights' sum."""
    group = tl.program_id(0)
    kv_head = group // (HEADS // (KV_HEADS * GROUP))
    p_tile = p_tiles + tl.program_id(1) * 2
    row, query = tl.load(p_tile), tl.load(p_tile + 1)
    first = tl.load(p_firsts + row)
    length = tl.load(p_firsts + row + 1) - first
    skip = tl.load(p_skips + row)
    start = tl.load(p_starts + row) - skip
    whole = (start + query + 1) // BLOCK * BLOCK
    o_row = tl.arange(0, TILE * GROUP)
    o_query = query + o_row // GROUP
    m_query = (o_query < length)[:, None]
    b_position = start + o_query
    o_d = tl.arange(0, DIM)
    o_token = (first + o_query).to(tl.int64)
    o_head = group * GROUP + o_row % GROUP
    o_q = o_token[:, None] * (HEADS * DIM) + o_head[:, None] * DIM + o_d[None, :]
    b_q = tl.load(p_q + o_q, mask=m_query, other=0.0)
    p_tables += row.to(tl.int64) * table_stride + skip // PAGE
    o_kv = (tl.arange(0, BLOCK) * KV_HEADS + kv_head)[:, None] * DIM + o_d[None, :]
    p_k = p_kv + layer_offset + o_kv
    b_o = tl.zeros([TILE * GROUP, DIM], tl.float32)
    b_max = tl.full([TILE * GROUP], float("-inf"), tl.float32)
    b_sum = tl.zeros([TILE * GROUP], tl.float32)
    end = start + tl.minimum(query + TILE, length)
    b_o, b_max, b_sum = _attend(
        b_q, b_o, b_max, b_sum, b_position, p_k, p_tables, page_stride, v_offset, scale,
        0, whole, end, KV_HEADS * DIM, DIM, PAGE, BLOCK, STAGES, False, 0,
    )  # fmt: skip
    b_o, b_max, b_sum = _attend(
        b_q, b_o, b_max, b_sum, b_position, p_k, p_tables, page_stride, v_offset, scale,
        whole, end, end, KV_HEADS * DIM, DIM, PAGE, BLOCK, STAGES, True, 0,
    )  # fmt: skip
    tl.store(p_out + o_q, b_o / b_sum[:, None], mask=m_query)
    b_log_sum = (b_max + tl.log2(b_sum)) * 0.6931471805599453
    tl.store(p_log_sums + o_token * HEADS + o_head, b_log_sum, mask=o_query < length)


@triton.jit(do_not_specialize=["first"])
def _merge_kernel(
    p_so_far,
    p_log_sums,
    p_found,
    p_sums,
    p_gate,
    p_out,
    first,
    gate_stride,
    part_stride,
    head_stride,
    query_stride,
    sums_part_stride,
    sums_stride,
    PARTS: tl.constexpr,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    LAST: tl.constexpr,
):
    """Merge what a piece gives for one token and head; with the LAST one, gate the output."""
    query, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    token = first + query
    o_d = tl.arange(0, DIM)
    o_so_far = (token * HEADS + head) * DIM + o_d
    kv_head, place = head // GROUP, query * GROUP + head % GROUP
    p_found += kv_head * head_stride + place * query_stride
    p_sums += kv_head * sums_stride + place
    b_o = tl.load(p_so_far + o_so_far)
    p_log_sum = p_log_sums + token * HEADS + head
    log_sum = tl.load(p_log_sum)
    for part in tl.static_range(PARTS):
        b_new = tl.load(p_found + part * part_stride + o_d).to(tl.float32)
        new = tl.load(p_sums + part * sums_part_stride)
        most = tl.maximum(log_sum, new)
        share, new_share = tl.exp(log_sum - most), tl.exp(new - most)
        b_o = (b_o * share + b_new * new_share) / (share + new_share)
        log_sum = most + tl.log(share + new_share)
    if LAST:
        b_gate = tl.load(p_gate + token * gate_stride + head * DIM + o_d).to(tl.float32)
        b_o *= tl.sigmoid(b_gate)
        tl.store(p_out + o_so_far, b_o.to(p_out.dtype.element_ty))
    else:
        tl.store(p_so_far + o_so_far, b_o)
        tl.store(p_log_sum, log_sum)
