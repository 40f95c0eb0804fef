"""Experts for a few tokens, where the time is the reading of each touched expert's weights, once.

    h[t, j] = silu(gate_e x_t) * (up_e x_t);   y[t, j] = p[t, j] * down_e h[t, j],   e = ids[t, j]

Up to 16 tokens no sort is needed: tensor cores take 16 rows anyway, so a program multiplies its
band of an expert's weights with all tokens and keeps the rows that chose the expert. Beyond that
``plan`` packs each expert's tokens. Either way a row's sum is formed in the same order: a token's
result does not depend on its batch. The contributions come back per token in a fixed order, the
shared expert's last, for ``add_rms_norm`` to add: no atomics.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from engine.kernels.triton_dot import dot
from engine.kernels.triton_overlap import (
    dependents_may_launch,
    overlap,
    prefetch,
    wait_for_inputs,
)
from engine.kernels.triton_plan import num_tiles, plan, tile_of

BLOCK_M = 16


@dataclass(frozen=True)
class Tiles:
    rows: int
    k: int
    stages: int
    warps: int


@triton.jit(do_not_specialize=["num_tokens"])
def _gate_up_kernel(
    p_x,
    p_ids,
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
    BLOCK_P: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PLANNED: tl.constexpr,
    PDL: tl.constexpr,
):
    wait_for_inputs(PDL)
    # After the wait: the down projection may then read ids and lists before its own.
    dependents_may_launch(PDL)
    expert, b_pair = tile_of(
        p_ids, p_lists, p_counts, tl.program_id(1), num_tokens,
        EXPERTS, BLOCK_E, TOP_K, BLOCK_P, BLOCK_M, PLANNED,
    )  # fmt: skip
    if expert < 0:
        return
    valid = (b_pair >= 0)[:, None]
    o_k = tl.arange(0, BLOCK_K)[None, :]
    o_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    p_x += (tl.maximum(b_pair, 0) // TOP_K)[:, None] * K + o_k
    p_w += expert.to(tl.int64) * (2 * DIM * K) + o_n[:, None] * K + o_k
    b_gate = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    b_up = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in tl.range(0, K, BLOCK_K):
        b_x = tl.load(p_x + k, mask=valid, other=0.0)
        b_wg = tl.load(p_w + k)
        b_wu = tl.load(p_w + DIM * K + k)
        b_gate = dot(b_x, tl.trans(b_wg), b_gate)
        b_up = dot(b_x, tl.trans(b_wu), b_up)
    b_h = b_gate / (1.0 + tl.exp(-b_gate)) * b_up
    p_h += b_pair[:, None] * DIM + o_n[None, :]
    tl.store(p_h, b_h.to(p_h.dtype.element_ty), mask=valid)


@triton.jit(do_not_specialize=["num_tokens", "shared_tiles"])
def _down_kernel(
    p_h,
    p_ids,
    p_lists,
    p_counts,
    p_weights,
    p_w,
    p_shared_h,
    p_shared_w,
    p_y,
    num_tokens,
    shared_tiles,
    HIDDEN: tl.constexpr,
    DIM: tl.constexpr,
    EXPERTS: tl.constexpr,
    BLOCK_E: tl.constexpr,
    TOP_K: tl.constexpr,
    SLOTS: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PLANNED: tl.constexpr,
    PDL: tl.constexpr,
):
    tile = tl.program_id(1)
    o_k = tl.arange(0, BLOCK_K)[None, :]
    o_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    dependents_may_launch(PDL)
    if tile < shared_tiles:
        b_token = tile * BLOCK_M + tl.arange(0, BLOCK_M)
        valid = (b_token < num_tokens)[:, None]
        b_scale = tl.full((BLOCK_M,), 1.0, tl.float32)
        p_band = p_shared_w
        p_row = p_shared_h + tl.minimum(b_token, num_tokens - 1)[:, None] * DIM
        b_out = b_token * SLOTS + TOP_K
        expert = 0
    else:
        expert, b_pair = tile_of(
            p_ids, p_lists, p_counts, tile - shared_tiles, num_tokens,
            EXPERTS, BLOCK_E, TOP_K, BLOCK_P, BLOCK_M, PLANNED,
        )  # fmt: skip
        valid = (b_pair >= 0)[:, None]
        b_scale = tl.load(p_weights + b_pair, mask=b_pair >= 0, other=0.0)
        p_band = p_w + tl.maximum(expert, 0).to(tl.int64) * (HIDDEN * DIM)
        p_row = p_h + tl.maximum(b_pair, 0)[:, None] * DIM
        b_out = b_pair // TOP_K * SLOTS + b_pair % TOP_K
    if expert < 0:
        # One program waits whatever happens: this kernel's end must not precede its inputs'.
        if tile == shared_tiles:
            wait_for_inputs(PDL)
        return
    LINES: tl.constexpr = (DIM + 63) // 64
    p_rows = p_band + o_n[:, None] * DIM
    prefetch(p_rows + tl.arange(0, LINES)[None, :] * 64, PDL)
    wait_for_inputs(PDL)
    b_y = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in tl.range(0, DIM, BLOCK_K):
        b_h = tl.load(p_row + (k + o_k), mask=valid, other=0.0)
        b_w = tl.load(p_rows + (k + o_k))
        b_y = dot(b_h, tl.trans(b_w), b_y)
    b_y *= b_scale[:, None]
    p_y += b_out.to(tl.int64)[:, None] * HIDDEN + o_n[None, :]
    tl.store(p_y, b_y.to(p_y.dtype.element_ty), mask=valid)


def experts(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    shared: tuple[torch.Tensor, torch.Tensor] | None = None,
    tiles: tuple[Tiles, Tiles] | None = None,
) -> torch.Tensor:
    """Contributions [top_k (+ 1), tokens, hidden] float32, to be added per token in that order.

    x [tokens, hidden]; ids int32 and weights float32 [tokens, top_k], -1 for no expert: such
    contributions are undefined. gate_up [experts, 2 * dim, hidden], down [experts, hidden, dim];
    shared: the shared expert's scaled activation [tokens, dim] and its down [hidden, dim].
    """
    (num_tokens, hidden), (num_experts, _, dim) = x.shape, down.shape
    top_k = ids.shape[1]
    assert gate_up.shape == (num_experts, 2 * dim, hidden) and down.shape[1] == hidden
    assert ids.shape == weights.shape == (num_tokens, top_k) and ids.dtype == torch.int32
    assert weights.dtype == torch.float32
    assert all(t.is_contiguous() for t in (x, ids, weights, gate_up, down))
    in_tiles, out_tiles = tiles or _tiles(num_tokens)
    assert dim % in_tiles.rows == hidden % in_tiles.k == 0
    assert hidden % out_tiles.rows == dim % out_tiles.k == 0
    slots, shared_tiles, shared_h, shared_w = top_k, 0, x, down
    if shared is not None:
        shared_h, shared_w = shared
        assert shared_h.shape == (num_tokens, dim) and shared_w.shape == (hidden, dim)
        assert shared_h.is_contiguous() and shared_w.is_contiguous()
        slots, shared_tiles = top_k + 1, triton.cdiv(num_tokens, BLOCK_M)

    planned = num_tokens > BLOCK_M
    lists, counts = plan(ids, num_experts) if planned else (ids, ids)
    grid_m = num_tiles(num_tokens, top_k, num_experts, BLOCK_M) if planned else ids.numel()
    h = torch.empty((num_tokens * top_k, dim), dtype=x.dtype, device=x.device)
    y = torch.empty((num_tokens, slots, hidden), dtype=torch.float32, device=x.device)
    shape = {
        "DIM": dim,
        "EXPERTS": num_experts,
        "BLOCK_E": triton.next_power_of_2(num_experts),
        "TOP_K": top_k,
        "BLOCK_P": BLOCK_M * top_k,
        "BLOCK_M": BLOCK_M,
        "PLANNED": planned,
    }
    _gate_up_kernel[(dim // in_tiles.rows, grid_m)](
        x,
        ids,
        lists,
        counts,
        gate_up,
        h,
        num_tokens,
        K=hidden,
        BLOCK_N=in_tiles.rows,
        BLOCK_K=in_tiles.k,
        num_warps=in_tiles.warps,
        num_stages=in_tiles.stages,
        **shape,
        **overlap(x),
    )
    _down_kernel[(hidden // out_tiles.rows, shared_tiles + grid_m)](
        h,
        ids,
        lists,
        counts,
        weights,
        down,
        shared_h,
        shared_w,
        y,
        num_tokens,
        shared_tiles,
        HIDDEN=hidden,
        SLOTS=slots,
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
    return Tiles(32, 128, 4, 4), Tiles(64, 128, 4, 4)
