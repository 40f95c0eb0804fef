"""The tokens of each expert, as lists that fill tiles of a grouped matrix product.

    lists[e] = [t * top_k + j : ids[t, j] = e],   in the order of t;   counts[e] = |lists[e]|

A token chooses an expert at most once, so [experts, tokens] holds every list: no offsets have to
be known before a list is written, and expert e's program needs no other's result. A *pair* is
such a ``t * top_k + j``; results stay where the pair says, so nothing is permuted back.
"""

import torch
import triton
import triton.language as tl

from engine.kernels.triton_overlap import dependents_may_launch, overlap, wait_for_inputs


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
    o_k = tl.arange(0, TOP_K)[None, :]
    wait_for_inputs(PDL)
    dependents_may_launch(PDL)
    count = 0
    for start in range(0, num_tokens, BLOCK_T):
        tokens = start + tl.arange(0, BLOCK_T)
        o_pair = tokens[:, None] * TOP_K + o_k
        b_ids = tl.load(p_ids + o_pair, mask=(tokens < num_tokens)[:, None], other=-1)
        b_pair = tl.max(tl.where(b_ids == expert, o_pair, -1), axis=1)
        hit = (b_pair >= 0).to(tl.int32)
        place = count + tl.cumsum(hit, axis=0) - 1
        p_list = p_lists + expert.to(tl.int64) * num_tokens + place
        tl.store(p_list, b_pair, mask=hit == 1)
        count += tl.sum(hit, axis=0)
    tl.store(p_counts + expert, count)


def plan(ids: torch.Tensor, num_experts: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(lists [experts, tokens], counts [experts]), int32, of ids [tokens, top_k] int32.

    An id of -1 is in no list. top_k is a power of two. Past a list's count its row is undefined.
    """
    num_tokens, top_k = ids.shape
    assert ids.is_contiguous() and ids.dtype == torch.int32
    lists = torch.empty((num_experts, num_tokens), dtype=torch.int32, device=ids.device)
    counts = torch.empty((num_experts,), dtype=torch.int32, device=ids.device)
    _plan_kernel[(num_experts,)](
        ids,
        lists,
        counts,
        num_tokens,
        TOP_K=top_k,
        BLOCK_T=min(triton.next_power_of_2(num_tokens), 2048),
        num_warps=8 if num_tokens > 512 else 1,
        **overlap(ids),
    )
    return lists, counts


@triton.jit
def tile_of(
    p_ids,
    p_lists,
    p_counts,
    tile,
    num_tokens,
    EXPERTS: tl.constexpr,
    BLOCK_E: tl.constexpr,
    TOP_K: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_M: tl.constexpr,
    PLANNED: tl.constexpr,
):
    """(expert, pairs [BLOCK_M]) of a tile; expert -1 for a tile with nothing to do, pair -1 for
    a row.

    Planned: tile i is the i-th of all experts' lists cut into BLOCK_M. Else, for at most BLOCK_M
    tokens: tile i is the expert of pair i, if that is its first, and row t is token t.
    """
    o_m = tl.arange(0, BLOCK_M)
    if PLANNED:
        o_e = tl.arange(0, BLOCK_E)
        b_counts = tl.load(p_counts + o_e, mask=o_e < EXPERTS, other=0)
        b_tiles = (b_counts + BLOCK_M - 1) // BLOCK_M
        b_ends = tl.cumsum(b_tiles, axis=0)
        expert = tl.sum((b_ends <= tile).to(tl.int32), axis=0)
        here = o_e == expert
        place = (tile - tl.sum(tl.where(here, b_ends - b_tiles, 0), axis=0)) * BLOCK_M + o_m
        count = tl.sum(tl.where(here, b_counts, 0), axis=0)
        expert = tl.where(expert < EXPERTS, expert, -1)
        p_list = p_lists + expert.to(tl.int64) * num_tokens + place
        b_pair = tl.load(p_list, mask=place < count, other=-1)
    else:
        expert = tl.load(p_ids + tile)
        o_pair = o_m[:, None] * TOP_K + tl.arange(0, TOP_K)[None, :]
        b_ids = tl.load(p_ids + o_pair, mask=(o_m < num_tokens)[:, None], other=-1)
        hit = b_ids == expert
        b_pair = tl.max(tl.where(hit, o_pair, -1), axis=1)
        first = tl.min(tl.min(tl.where(hit, o_pair, BLOCK_P), axis=1), axis=0)
        expert = tl.where(first == tile, expert, -1)
    return expert, b_pair


def num_tiles(num_tokens: int, top_k: int, num_experts: int, block_m: int) -> int:
    """The most tiles that a plan can have: known without looking at the ids."""
    num_pairs = num_tokens * top_k
    started = min(num_pairs, num_experts)
    return started + (num_pairs - started) // block_m
