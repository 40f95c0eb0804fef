"""Experts for many tokens: grouped matrix products at the tensor cores' speed.

    h[p] = silu(gate_e x_t) * (up_e x_t);   y[p] = p[p] * down_e h[p],   pair p = (t, j), e = ids[p]

Tiles of pairs of one expert (``plan``) gather their rows of ``x`` and ``h`` and put their results
in the pair's place. The bands of an expert's weights follow one another in the grid, so its tiles
find rows and weights in the L2 cache.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from engine.kernels.triton_dot import dot
from engine.kernels.triton_overlap import dependents_may_launch, overlap, wait_for_inputs
from engine.kernels.triton_plan import num_tiles, plan, tile_of


@dataclass(frozen=True)
class Tiles:
    pairs: int
    rows: int
    k: int
    stages: int
    warps: int


@triton.jit(do_not_specialize=["num_tokens"])
def _gate_up_kernel(
    p_x,
    p_lists,
    p_counts,
    p_w,
    p_h,
    num_tokens,
    K: tl.constexpr,
    DIM: tl.constexpr,
    EXPERTS: tl.constexpr,
    BLOCK_E: tl.constexpr,
    TOP_K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PDL: tl.constexpr,
):
    wait_for_inputs(PDL)
    dependents_may_launch(PDL)
    bands: tl.constexpr = 2 * DIM // BLOCK_N
    HALF: tl.constexpr = BLOCK_N // 2
    expert, b_pair = tile_of(
        p_lists, p_lists, p_counts, tl.program_id(0) // bands, num_tokens,
        EXPERTS, BLOCK_E, TOP_K, 0, BLOCK_M, True,
    )  # fmt: skip
    if expert < 0:
        return
    o_k = tl.arange(0, BLOCK_K)
    o_band = tl.program_id(0) % bands * HALF
    # One product for both: gate rows in the first half of the tile, up rows in the second.
    o_n = tl.arange(0, BLOCK_N)
    rows = o_band + o_n % HALF + o_n // HALF * DIM
    # Rows without a pair read token 0: a mask would cost every row of every tile.
    p_x += (tl.maximum(b_pair, 0) // TOP_K)[:, None] * K + o_k[None, :]
    p_w += expert.to(tl.int64) * (2 * DIM * K) + rows[None, :] * K + o_k[:, None]
    b_y = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in tl.range(0, K, BLOCK_K):
        b_x = tl.load(p_x + k)
        b_w = tl.load(p_w + k)
        b_y = dot(b_x, b_w, b_y)
    b_gate, b_up = tl.split(b_y.reshape(BLOCK_M, 2, HALF).permute(0, 2, 1))
    b_h = b_gate / (1.0 + tl.exp(-b_gate)) * b_up
    p_h += b_pair[:, None].to(tl.int64) * DIM + (o_band + tl.arange(0, HALF))[None, :]
    tl.store(p_h, b_h.to(p_h.dtype.element_ty), mask=(b_pair >= 0)[:, None])


@triton.jit(do_not_specialize=["num_tokens"])
def _down_kernel(
    p_h,
    p_lists,
    p_counts,
    p_weights,
    p_w,
    p_y,
    num_tokens,
    HIDDEN: tl.constexpr,
    DIM: tl.constexpr,
    EXPERTS: tl.constexpr,
    BLOCK_E: tl.constexpr,
    TOP_K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PDL: tl.constexpr,
):
    wait_for_inputs(PDL)
    dependents_may_launch(PDL)
    bands: tl.constexpr = HIDDEN // BLOCK_N
    expert, b_pair = tile_of(
        p_lists, p_lists, p_counts, tl.program_id(0) // bands, num_tokens,
        EXPERTS, BLOCK_E, TOP_K, 0, BLOCK_M, True,
    )  # fmt: skip
    if expert < 0:
        return
    o_k = tl.arange(0, BLOCK_K)
    o_n = tl.program_id(0) % bands * BLOCK_N + tl.arange(0, BLOCK_N)
    p_h += tl.maximum(b_pair, 0)[:, None].to(tl.int64) * DIM + o_k[None, :]
    p_w += expert.to(tl.int64) * (HIDDEN * DIM) + o_n[None, :] * DIM + o_k[:, None]
    b_scale = tl.load(p_weights + b_pair, mask=b_pair >= 0, other=0.0)
    b_y = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in tl.range(0, DIM, BLOCK_K):
        b_h = tl.load(p_h + k)
        b_w = tl.load(p_w + k)
        b_y = dot(b_h, b_w, b_y)
    b_y *= b_scale[:, None]
    p_y += b_pair[:, None].to(tl.int64) * HIDDEN + o_n[None, :]
    tl.store(p_y, b_y.to(p_y.dtype.element_ty), mask=(b_pair >= 0)[:, None])


def experts_prefill(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    tiles: tuple[Tiles, Tiles] | None = None,
) -> torch.Tensor:
    """Contributions [top_k, tokens, hidden] in ``x``'s dtype, to be added per token in that order.

    x [tokens, hidden]; ids int32 and weights float32 [tokens, top_k], -1 for no expert: such
    contributions are undefined. gate_up [experts, 2 * dim, hidden], down [experts, hidden, dim].
    """
    (num_tokens, hidden), (num_experts, _, dim) = x.shape, down.shape
    top_k = ids.shape[1]
    assert gate_up.shape == (num_experts, 2 * dim, hidden) and down.shape[1] == hidden
    assert ids.shape == weights.shape == (num_tokens, top_k) and weights.dtype == torch.float32
    assert all(t.is_contiguous() for t in (x, ids, weights, gate_up, down))
    in_tiles, out_tiles = tiles or _tiles(num_tokens)
    assert (2 * dim) % in_tiles.rows == hidden % in_tiles.k == 0
    assert hidden % out_tiles.rows == dim % out_tiles.k == 0
    lists, counts = plan(ids, num_experts)
    h = torch.empty((num_tokens * top_k, dim), dtype=x.dtype, device=x.device)
    y = torch.empty((num_tokens, top_k, hidden), dtype=x.dtype, device=x.device)
    shape = {
        "DIM": dim,
        "EXPERTS": num_experts,
        "BLOCK_E": triton.next_power_of_2(num_experts),
        "TOP_K": top_k,
    }
    grid_m = num_tiles(num_tokens, top_k, num_experts, in_tiles.pairs)
    _gate_up_kernel[(grid_m * (2 * dim // in_tiles.rows),)](
        x,
        lists,
        counts,
        gate_up,
        h,
        num_tokens,
        K=hidden,
        BLOCK_M=in_tiles.pairs,
        BLOCK_N=in_tiles.rows,
        BLOCK_K=in_tiles.k,
        num_warps=in_tiles.warps,
        num_stages=in_tiles.stages,
        **shape,
        **overlap(x),
    )
    grid_m = num_tiles(num_tokens, top_k, num_experts, out_tiles.pairs)
    _down_kernel[(grid_m * (hidden // out_tiles.rows),)](
        h,
        lists,
        counts,
        weights,
        down,
        y,
        num_tokens,
        HIDDEN=hidden,
        BLOCK_M=out_tiles.pairs,
        BLOCK_N=out_tiles.rows,
        BLOCK_K=out_tiles.k,
        num_warps=out_tiles.warps,
        num_stages=out_tiles.stages,
        **shape,
        **overlap(x),
    )
    return y.transpose(0, 1)


def _tiles(num_tokens: int) -> tuple[Tiles, Tiles]:
    """(for gate_up, for down), as measured on an H200."""
    return Tiles(128, 256, 64, 3, 8), Tiles(128, 256, 64, 3, 8)
