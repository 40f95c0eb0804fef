# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Experts for up to 512 tokens, whose time is the reading of each touched expert's weights.

    h[t, j] = silu(gate_e x_t) * (up_e x_t);   y[t, j] = p[t, j] * down_e h[t, j],   e = ids[t, j]

Up to 16 tokens no sort is needed: tensor cores take 16 rows anyway, so a program multiplies its
band of an expert's weights with all tokens and keeps the rows that chose the expert. Beyond that
``plan`` lists each expert's tokens. Either way a row's sum is formed in one order: a token's result
does not depend on its batch. The contributions come back per token in a fixed order, the shared
expert's last, for ``add_rms_norm`` to add: no atomics.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from engine.kernels.triton_dot import dot
from engine.kernels.triton_overlap import (
    overlap,
    wait_for_inputs,
)
from engine.kernels.triton_plan import plan


@dataclass(frozen=True)
class Tiles:
    rows: int
    k: int
    stages: int
    warps: int


@triton.jit
def _all_tokens(p_ids, pair, expert, num_tokens, TOP_K: tl.constexpr, BLOCK_M: tl.constexpr):
    """(whether ``pair`` is the first that chose the expert, row t's pair or -1)."""
    o_m = tl.arange(0, BLOCK_M)
    o_pair = o_m[:, None] * TOP_K + tl.arange(0, TOP_K)[None, :]
    b_ids = tl.load(p_ids + o_pair, mask=(o_m < num_tokens)[:, None], other=-1)
    b_pair = tl.max(tl.where(b_ids == expert, o_pair, -1), axis=1)
    first = tl.min(tl.where(b_pair >= 0, b_pair, BLOCK_M * TOP_K), axis=0)
    return first == pair, b_pair


@triton.jit
def _gate_up_band(
    p_x,
    p_band,
    p_h,
    b_pair,
    o_n,
    K: tl.constexpr,
    DIM: tl.constexpr,
    TOP_K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    valid = (b_pair >= 0)[:, None]
    o_k = tl.arange(0, BLOCK_K)[None, :]
    p_rows = p_x + (tl.maximum(b_pair, 0) // TOP_K)[:, None] * K + o_k
    p_band += o_k
    b_gate = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    b_up = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in tl.range(0, K, BLOCK_K):
        b_x = tl.load(p_rows + k, mask=valid, other=0.0)
        b_wg = tl.load(p_band + k)
        b_wu = tl.load(p_band + DIM * K + k)
        b_gate = dot(b_x, tl.trans(b_wg), b_gate)
        b_up = dot(b_x, tl.trans(b_wu), b_up)
    b_h = b_gate / (1.0 + tl.exp(-b_gate)) * b_up
    tl.store(p_h + b_pair[:, None] * DIM + o_n[None, :], b_h.to(p_h.dtype.element_ty), mask=valid)


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
    TOP_K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PLANNED: tl.constexpr,
    PDL: tl.constexpr,
):
    tile = tl.program_id(1)
    o_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    wait_for_inputs(PDL)
    if PLANNED:
        expert = tile
        count = tl.load(p_counts + expert)
        if count == 0:
            return
    else:
        expert = tl.load(p_ids + tile)
        if expert < 0:
            return
    p_band = p_w + expert.to(tl.int64) * (2 * DIM * K) + o_n[:, None] * K
    if PLANNED:
        p_list = p_lists + expert * num_tokens
        for start in range(0, count, BLOCK_M):
            place = start + tl.arange(0, BLOCK_M)
            b_pair = tl.load(p_list + place, mask=place < count, other=-1)
            _gate_up_band(p_x, p_band, p_h, b_pair, o_n, K, DIM, TOP_K, BLOCK_M, BLOCK_N, BLOCK_K)
    else:
        first, b_pair = _all_tokens(p_ids, tile, expert, num_tokens, TOP_K, BLOCK_M)
        if first:
            _gate_up_band(p_x, p_band, p_h, b_pair, o_n, K, DIM, TOP_K, BLOCK_M, BLOCK_N, BLOCK_K)


@triton.jit
def _down_band(
    p_h,
    p_band,
    p_y,
    b_row,
    b_out,
    b_scale,
    o_n,
    HIDDEN: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    valid = (b_row >= 0)[:, None]
    o_k = tl.arange(0, BLOCK_K)[None, :]
    p_rows = p_h + tl.maximum(b_row, 0)[:, None] * DIM + o_k
    p_band += o_k
    b_y = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in tl.range(0, DIM, BLOCK_K):
        b_h = tl.load(p_rows + k, mask=valid, other=0.0)
        b_w = tl.load(p_band + k)
        b_y = dot(b_h, tl.trans(b_w), b_y)
    p_y += b_out.to(tl.int64)[:, None] * HIDDEN + o_n[None, :]
    tl.store(p_y, (b_y * b_scale[:, None]).to(p_y.dtype.element_ty), mask=valid)


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
    TOP_K: tl.constexpr,
    SLOTS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PLANNED: tl.constexpr,
    PDL: tl.constexpr,
):
    tile = tl.program_id(1) - shared_tiles
    o_m = tl.arange(0, BLOCK_M)
    o_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    expert, count = 0, 1
    p_band = p_shared_w
    if tile >= 0:
        if PLANNED:
            expert = tile
            count = tl.load(p_counts + expert)
        else:
            expert = tl.load(p_ids + tile)
            count = expert + 1
        p_band = p_w + tl.maximum(expert, 0).to(tl.int64) * (HIDDEN * DIM)
    if count == 0:
        # One program waits whatever happens: this kernel's end must not precede its inputs'.
        if tile == 0:
            wait_for_inputs(PDL)
        return
    p_band += o_n[:, None] * DIM
    if tile < 0:
        b_token = (tile + shared_tiles) * BLOCK_M + o_m
        b_row = tl.where(b_token < num_tokens, b_token, -1)
        b_scale = tl.full((BLOCK_M,), 1.0, tl.float32)
        wait_for_inputs(PDL)
        _down_band(
            p_shared_h, p_band, p_y, b_row, b_token * SLOTS + TOP_K, b_scale, o_n,
            HIDDEN, DIM, BLOCK_M, BLOCK_N, BLOCK_K,
        )  # fmt: skip
    elif PLANNED:
        wait_for_inputs(PDL)
        p_list = p_lists + expert * num_tokens
        for start in range(0, count, BLOCK_M):
            b_pair = tl.load(p_list + start + o_m, mask=start + o_m < count, other=-1)
            b_scale = tl.load(p_weights + b_pair, mask=b_pair >= 0, other=0.0)
            _down_band(
                p_h, p_band, p_y, b_pair, b_pair // TOP_K * SLOTS + b_pair % TOP_K, b_scale, o_n,
                HIDDEN, DIM, BLOCK_M, BLOCK_N, BLOCK_K,
            )  # fmt: skip
    else:
        first, b_pair = _all_tokens(p_ids, tile, expert, num_tokens, TOP_K, BLOCK_M)
        b_scale = tl.load(p_weights + b_pair, mask=b_pair >= 0, other=0.0)
        wait_for_inputs(PDL)
        if first:
            _down_band(
                p_h, p_band, p_y, b_pair, b_pair // TOP_K * SLOTS + b_pair % TOP_K, b_scale, o_n,
                HIDDEN, DIM, BLOCK_M, BLOCK_N, BLOCK_K,
            )  # fmt: skip


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
    assert gate_up.shape == (num_experts, 2 * dim, hidden)
    assert down.shape[1] == hidden
    assert ids.shape == weights.shape == (num_tokens, top_k)
    assert ids.dtype == torch.int32
    assert weights.dtype == torch.float32
    assert all(t.is_contiguous() for t in (x, ids, weights, gate_up, down))
    in_tiles, out_tiles = tiles or _tiles(num_tokens)
    block_m = _block_m(num_tokens)
    assert dim % in_tiles.rows == hidden % in_tiles.k == 0
    assert hidden % out_tiles.rows == dim % out_tiles.k == 0
    slots, shared_tiles, shared_h, shared_w = top_k, 0, x, down
    if shared is not None:
        shared_h, shared_w = shared
        assert shared_h.shape == (num_tokens, dim)
        assert shared_w.shape == (hidden, dim)
        assert shared_h.is_contiguous()
        assert shared_w.is_contiguous()
        slots, shared_tiles = top_k + 1, triton.cdiv(num_tokens, block_m)

    planned = num_tokens > 16
    lists, counts = plan(ids, num_experts) if planned else (ids, ids)
    grid_m = num_experts if planned else ids.numel()
    h = torch.empty((num_tokens * top_k, dim), dtype=x.dtype, device=x.device)
    y = torch.empty((num_tokens, slots, hidden), dtype=torch.float32, device=x.device)
    shape = {
        "DIM": dim,
        "TOP_K": top_k,
        "BLOCK_M": block_m,
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
    if num_tokens <= 256:
        return Tiles(32, 256, 3, 4), Tiles(128, 128, 3, 4)
    return Tiles(64, 128, 3, 4), Tiles(128, 64, 4, 4)


def _block_m(num_tokens: int) -> int:
    """Rows of a product: at 256 experts of which 8 are chosen, most lists fit in one.

    NOTE: from 64 rows on other instructions sum in another order.
    """
    return 16 if num_tokens <= 256 else 32
