# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""The tokens of each expert, as lists that fill tiles of a grouped matrix product.

    lists[e] = [t * top_k + j : ids[t, j] = e],   in the order of t;   counts[e] = |lists[e]|

A token chooses an expert at most once, so [experts, tokens] holds every list: no offsets are needed
before a list is written, and no program needs another expert's result. A *pair* is such a
``t * top_k + j``; results are stored in the pair's place, so nothing is permuted back.

Reference: torch.nonzero(ids == e); test: tests/kernels/experts/test_triton_moe.py.
"""

import torch
import triton
import triton.language as tl

from engine.kernels.triton_overlap import overlap, wait_for_inputs


@triton.jit(do_not_specialize=["num_tokens"])
def _plan_kernel(
    p_ids,
    p_lists,
    p_counts,
    num_tokens,
    TOP_K: tl.constexpr,
    BLOCK_T: tl.constexpr,
    PDL: tl.constexpr,
):
    expert = tl.program_id(0)
    COLUMNS: tl.constexpr = triton.next_power_of_2(TOP_K)
    o_k = tl.arange(0, COLUMNS)[None, :]
    wait_for_inputs(PDL)
    count = 0
    for start in range(0, num_tokens, BLOCK_T):
        tokens = start + tl.arange(0, BLOCK_T)
        o_pair = tokens[:, None] * TOP_K + o_k
        mask = (tokens < num_tokens)[:, None]
        if COLUMNS != TOP_K:
            mask &= o_k < TOP_K
        b_ids = tl.load(p_ids + o_pair, mask=mask, other=-1)
        b_pair = tl.max(tl.where(b_ids == expert, o_pair, -1), axis=1)
        hit = (b_pair >= 0).to(tl.int32)
        place = count + tl.cumsum(hit, axis=0) - 1
        p_list = p_lists + expert.to(tl.int64) * num_tokens + place
        tl.store(p_list, b_pair, mask=hit == 1)
        count += tl.sum(hit, axis=0)
    tl.store(p_counts + expert, count)


def plan(ids: torch.Tensor, num_experts: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(lists [experts, tokens], counts [experts]), int32, of ids [tokens, top_k] int32.

    An id of -1 is in no list. Past a list's count its row is undefined.
    """
    num_tokens, top_k = ids.shape
    assert ids.is_contiguous()
    assert ids.dtype == torch.int32
    lists = torch.empty((num_experts, num_tokens), dtype=torch.int32, device=ids.device)
    counts = torch.empty((num_experts,), dtype=torch.int32, device=ids.device)
    _plan_kernel[(num_experts,)](
        ids,
        lists,
        counts,
        num_tokens,
        TOP_K=top_k,
        BLOCK_T=_tokens_at_once(num_tokens),
        num_warps=8 if num_tokens > 256 else 1,
        **overlap(ids),
    )
    return lists, counts


def _tokens_at_once(num_tokens: int) -> int:
    """Number of tokens per round. There are few different values: the kernel is compiled for
    each."""
    return next((n for n in (16, 64, 256) if num_tokens <= n), 2048)


@triton.jit(do_not_specialize=["num_tiles"])
def _tiles_kernel(
    p_counts,
    p_tiles,
    num_tiles,
    EXPERTS: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    tiles = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    o_e = tl.arange(0, BLOCK_E)
    wait_for_inputs(PDL)
    b_counts = tl.load(p_counts + o_e, mask=o_e < EXPERTS, other=0)
    b_ends = tl.cumsum((b_counts + BLOCK_M - 1) // BLOCK_M, axis=0)[None, :]
    b_before = b_ends <= tiles[:, None]
    b_expert = tl.sum(b_before.to(tl.int32), axis=1)
    b_first = tl.max(tl.where(b_before, b_ends, 0), axis=1)
    b_start = tl.where(b_expert < EXPERTS, (tiles - b_first) * BLOCK_M, -1)
    # Behind all tiles: the number of those that this routing needs.
    b_expert = tl.where(tiles == num_tiles - 1, tl.max(b_ends), b_expert)
    b_row = tl.sum(tl.where(o_e[None, :] < b_expert[:, None], b_counts[None, :], 0), axis=1)
    tl.store(p_tiles + tiles, b_expert, mask=tiles < num_tiles)
    tl.store(p_tiles + num_tiles + tiles, b_start, mask=tiles < num_tiles)
    tl.store(p_tiles + 2 * num_tiles + tiles, b_row + b_start, mask=tiles < num_tiles)


def plan_tiles(counts: torch.Tensor, num_tokens: int, top_k: int, block_m: int) -> torch.Tensor:
    """Cut all lists into tiles of ``block_m`` -> [3, tiles + 1] int32: (expert, first place in its
    list, row).

    The row is the first place's index among all lists, one after another. The number of tiles
    suffices for any routing, so it is known without the counts. The place of a tile that this
    routing does not need is -1. So is that of the last column, where the number of tiles that it
    needs stands for the expert.
    """
    num_experts = counts.shape[0]
    assert counts.is_contiguous()
    assert counts.dtype == torch.int32, counts.dtype
    tiles = max_tiles(num_tokens, top_k, num_experts, block_m) + 1
    out = torch.empty((3, tiles), dtype=torch.int32, device=counts.device)
    _tiles_kernel[(triton.cdiv(tiles, 32),)](
        counts,
        out,
        tiles,
        EXPERTS=num_experts,
        BLOCK_E=triton.next_power_of_2(num_experts),
        BLOCK_M=block_m,
        BLOCK=32,
        num_warps=4,
        **overlap(counts),
    )
    return out


def plan_both(
    ids: torch.Tensor, num_experts: int, in_pairs: int, out_pairs: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """(lists, counts) of ``plan``, and the tiles of two products with ``in_pairs`` and
    ``out_pairs`` pairs per tile."""
    num_tokens, top_k = ids.shape
    lists, counts = plan(ids, num_experts)
    in_plan = plan_tiles(counts, num_tokens, top_k, in_pairs)
    if out_pairs == in_pairs:
        return lists, counts, in_plan, in_plan
    return lists, counts, in_plan, plan_tiles(counts, num_tokens, top_k, out_pairs)


def max_tiles(num_tokens: int, top_k: int, num_experts: int, block_m: int) -> int:
    """The most tiles that any routing of ``num_tokens`` can need."""
    num_pairs = num_tokens * top_k
    started = min(num_pairs, num_experts)
    return started + (num_pairs - started) // block_m
