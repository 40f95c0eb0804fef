# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Experts for up to 512 tokens, whose time is spent on reading each chosen expert's weights.

    h[t, j] = silu(gate_e x_t) * (up_e x_t);   y[t, j] = p[t, j] * down_e h[t, j],   e = ids[t, j]

Up to 16 tokens no sort is needed: tensor cores take 16 rows anyway, so a program multiplies its
band of an expert's weights with all tokens and keeps the rows that chose the expert. With more
tokens ``plan`` lists each expert's tokens. In both cases a row's sum has the same order, so a
token's result does not depend on its batch. The contributions of a token are returned in a fixed
order, the shared expert's last, for ``add_rms_norm`` to add: no atomics.

Reference: torch_experts.add_experts; test: tests/kernels/experts/test_triton_moe.py, test_fp8.py.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from engine.kernels.experts.triton_expert_bands import all_tokens, down_band, gate_up_band
from engine.kernels.experts.triton_expert_splits import H_GROUP, down_split, gate_up_split
from engine.kernels.experts.triton_expert_tiles import pairs_of
from engine.kernels.experts.triton_plan import plan
from engine.kernels.formats.triton_fp8 import BLOCK_K as FP8_K
from engine.kernels.formats.triton_split import Split, split_rows
from engine.kernels.triton_overlap import overlap, wait_for_inputs
from engine.model.matrix import Matrix


@dataclass(frozen=True)
class Tiles:
    """Tile sizes: rows and k (128 in FP8) of a tile of the weights, and rounds in flight."""

    rows: int
    k: int
    stages: int
    warps: int
    split_stages: int = 2
    """Rounds in flight when weights in FP8 are multiplied by a split."""
    bands: int = 1
    """Tiles of rows that a program of ``down`` in FP8 computes one after another."""

    def arguments(self) -> dict[str, Any]:
        return {
            "BLOCK_N": self.rows,
            "BLOCK_K": self.k,
            "SPLIT_STAGES": self.split_stages,
            "num_warps": self.warps,
            "num_stages": self.stages,
        }


@triton.jit
def expert_gate_up(
    p_x,
    p_s,
    p_w,
    p_scales,
    p_h,
    p_hs,
    b_pair,
    band,
    K: tl.constexpr,
    DIM: tl.constexpr,
    TOP_K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    FP8: tl.constexpr,
    SPLIT_STAGES: tl.constexpr,
):
    """``gate_up_band`` of an expert, in FP8 ``gate_up_split``."""
    if FP8:
        gate_up_split(
            p_x, p_s, p_w, p_scales, p_h, p_hs, b_pair, band,
            K, DIM, TOP_K, BLOCK_M, BLOCK_N, SPLIT_STAGES,
        )  # fmt: skip
    else:
        gate_up_band(p_x, p_w, p_h, b_pair, band, K, DIM, TOP_K, BLOCK_M, BLOCK_N, BLOCK_K)


@triton.jit
def expert_down(
    p_h,
    p_hs,
    p_w,
    p_scales,
    expert,
    p_y,
    b_pair,
    b_out,
    b_weight,
    band,
    HIDDEN: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    FP8: tl.constexpr,
    SPLIT_STAGES: tl.constexpr,
    BANDS: tl.constexpr,
):
    """``down_band`` of an expert, or ``down_split`` in FP8; without FP8, BANDS is 1."""
    if FP8:
        down_split(
            p_h, p_hs, p_w, p_scales, expert, p_y, b_pair, b_out, b_weight, band,
            HIDDEN, DIM, BLOCK_M, BLOCK_N, BANDS, SPLIT_STAGES,
        )  # fmt: skip
    else:
        down_band(
            p_h, p_w, p_scales, expert, p_y, b_pair, b_out, b_weight, band,
            HIDDEN, DIM, BLOCK_M, BLOCK_N, BLOCK_K, False,
        )  # fmt: skip


@triton.jit(do_not_specialize=["num_tokens"])
def gate_up_kernel(
    p_x,
    p_s,
    p_ids,
    p_lists,
    p_counts,
    p_w,
    p_scales,
    p_h,
    p_hs,
    num_tokens,
    K: tl.constexpr,
    DIM: tl.constexpr,
    TOP_K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    FP8: tl.constexpr,
    SPLIT_STAGES: tl.constexpr,
    PLANNED: tl.constexpr,
    SINGLE: tl.constexpr,
    PDL: tl.constexpr,
):
    """Compute h. In FP8 ``p_x`` and ``p_s`` are the tokens' split, ``p_h`` and ``p_hs`` h's."""
    tile = tl.program_id(1)
    band = tl.program_id(0) * BLOCK_N
    wait_for_inputs(PDL)
    if PLANNED:
        expert = tile
        count = tl.load(p_counts + expert)
        if count == 0:
            return
    else:
        expert, is_first, b_pair = all_tokens(p_ids, tile, num_tokens, TOP_K, BLOCK_M, SINGLE)
        if not is_first:
            return
    p_w += expert.to(tl.int64) * (2 * DIM * K)
    if FP8:
        p_scales += (expert * (2 * DIM // FP8_K) + band // FP8_K) * (K // FP8_K)
    if PLANNED:
        p_list = p_lists + expert * num_tokens
        for start in range(0, count, BLOCK_M):
            b_pair = pairs_of(p_list, start, count, BLOCK_M)
            expert_gate_up(
                p_x, p_s, p_w, p_scales, p_h, p_hs, b_pair, band,
                K, DIM, TOP_K, BLOCK_M, BLOCK_N, BLOCK_K, FP8, SPLIT_STAGES,
            )  # fmt: skip
    else:
        expert_gate_up(
            p_x, p_s, p_w, p_scales, p_h, p_hs, b_pair, band,
            K, DIM, TOP_K, BLOCK_M, BLOCK_N, BLOCK_K, FP8, SPLIT_STAGES,
        )  # fmt: skip


@triton.jit(do_not_specialize=["num_tokens", "shared_tiles"])
def _down_kernel(
    p_h,
    p_hs,
    p_ids,
    p_lists,
    p_counts,
    p_weights,
    p_w,
    p_scales,
    p_shared_h,
    p_shared_w,
    p_shared_scales,
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
    FP8: tl.constexpr,
    SHARED_FP8: tl.constexpr,
    SPLIT_STAGES: tl.constexpr,
    BANDS: tl.constexpr,
    PLANNED: tl.constexpr,
    SINGLE: tl.constexpr,
    PDL: tl.constexpr,
):
    tile = tl.program_id(1) - shared_tiles
    o_m = tl.arange(0, BLOCK_M)
    band = tl.program_id(0) * (BLOCK_N * BANDS)
    expert = tile * 0
    count = 1
    if tile >= 0:
        if PLANNED:
            expert = tile
            count = tl.load(p_counts + expert)
        else:
            expert = tl.load(p_ids + tile)
            count = expert + 1
    if count == 0:
        # One program always waits: this kernel must not end before its inputs are written.
        if tile == 0:
            wait_for_inputs(PDL)
        return
    if tile < 0:
        b_token = (tile + shared_tiles) * BLOCK_M + o_m
        b_row = tl.where(b_token < num_tokens, b_token, -1)
        b_weight = tl.full((BLOCK_M,), 1.0, tl.float32)
        wait_for_inputs(PDL)
        for i in range(BANDS):
            down_band(
                p_shared_h, p_shared_w, p_shared_scales, expert, p_y,
                b_row, b_token * SLOTS + TOP_K, b_weight, band + i * BLOCK_N,
                HIDDEN, DIM, BLOCK_M, BLOCK_N, BLOCK_K, SHARED_FP8,
            )  # fmt: skip
    elif PLANNED:
        wait_for_inputs(PDL)
        p_list = p_lists + expert * num_tokens
        for start in range(0, count, BLOCK_M):
            b_pair = tl.load(p_list + start + o_m, mask=start + o_m < count, other=-1)
            b_weight = tl.load(p_weights + b_pair, mask=b_pair >= 0, other=0.0)
            b_out = b_pair // TOP_K * SLOTS + b_pair % TOP_K
            expert_down(
                p_h, p_hs, p_w, p_scales, expert, p_y, b_pair, b_out, b_weight, band,
                HIDDEN, DIM, BLOCK_M, BLOCK_N, BLOCK_K, FP8, SPLIT_STAGES, BANDS,
            )  # fmt: skip
    else:
        _, is_first, b_pair = all_tokens(p_ids, tile, num_tokens, TOP_K, BLOCK_M, SINGLE)
        b_weight = tl.load(p_weights + b_pair, mask=b_pair >= 0, other=0.0)
        wait_for_inputs(PDL)
        if is_first:
            b_out = b_pair // TOP_K * SLOTS + b_pair % TOP_K
            expert_down(
                p_h, p_hs, p_w, p_scales, expert, p_y, b_pair, b_out, b_weight, band,
                HIDDEN, DIM, BLOCK_M, BLOCK_N, BLOCK_K, FP8, SPLIT_STAGES, BANDS,
            )  # fmt: skip


def experts(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    gate_up: Matrix,
    down: Matrix,
    shared: tuple[torch.Tensor, Matrix] | None = None,
    tiles: tuple[Tiles, Tiles] | None = None,
    split: Split | None = None,
) -> torch.Tensor:
    """Contributions [top_k (+ 1), tokens, hidden] float32, to be added per token in that order.

    x [tokens, hidden]; ids int32 and weights float32 [tokens, top_k], -1 for no expert: such
    contributions are undefined. gate_up [experts, 2 * dim, hidden], down [experts, hidden, dim].
    shared: the shared expert's scaled activation [tokens, dim] and its down [hidden, dim].
    split: ``x`` split in two, which experts in FP8 use instead of ``x``.
    """
    (num_tokens, hidden), (num_experts, _, dim) = x.shape, down.shape
    top_k = ids.shape[1]
    assert gate_up.shape == (num_experts, 2 * dim, hidden)
    assert down.shape[1] == hidden
    assert ids.shape == weights.shape == (num_tokens, top_k)
    assert ids.dtype == torch.int32
    assert weights.dtype == torch.float32
    assert all(t.is_contiguous() for t in (x, ids, weights))
    w_in, s_in, in_fp8 = whole(gate_up)
    w_out, s_out, out_fp8 = whole(down)
    in_tiles, out_tiles = tiles or tiles_of(num_tokens, in_fp8)
    block_m = block_rows(num_tokens)
    assert dim % in_tiles.rows == hidden % in_tiles.k == 0
    assert hidden % (out_tiles.rows * out_tiles.bands) == dim % out_tiles.k == 0
    assert out_fp8 or out_tiles.bands == 1
    assert not out_fp8 or out_tiles.k == FP8_K.value
    (rows, row_scales), (h, h_scales) = inputs_of(x, split, down, num_tokens * top_k, in_fp8)
    slots, shared_tiles, shared_h = top_k, 0, x
    shared_w, shared_scales, shared_fp8 = w_out, s_out, out_fp8
    if shared is not None:
        shared_h, shared_down = shared
        shared_w, shared_scales, shared_fp8 = whole(shared_down)
        assert shared_h.shape == (num_tokens, dim)
        assert shared_down.shape == (hidden, dim)
        assert shared_h.is_contiguous()
        assert not shared_fp8 or out_tiles.k == FP8_K.value
        slots, shared_tiles = top_k + 1, triton.cdiv(num_tokens, block_m)

    planned = num_tokens > 16
    lists, counts = plan(ids, num_experts) if planned else (ids, ids)
    grid_m = num_experts if planned else ids.numel()
    y = torch.empty((num_tokens, slots, hidden), dtype=torch.float32, device=x.device)
    shape = {
        "DIM": dim,
        "TOP_K": top_k,
        "BLOCK_M": block_m,
        "PLANNED": planned,
        "SINGLE": num_tokens == 1,
    }
    gate_up_kernel[(dim // in_tiles.rows, grid_m)](
        rows,
        row_scales,
        ids,
        lists,
        counts,
        w_in,
        s_in,
        h,
        h_scales,
        num_tokens,
        K=hidden,
        FP8=in_fp8,
        **in_tiles.arguments(),
        **shape,
        **overlap(x),
    )
    _down_kernel[(hidden // out_tiles.rows // out_tiles.bands, shared_tiles + grid_m)](
        h,
        h_scales,
        ids,
        lists,
        counts,
        weights,
        w_out,
        s_out,
        shared_h,
        shared_w,
        shared_scales,
        y,
        num_tokens,
        shared_tiles,
        HIDDEN=hidden,
        SLOTS=slots,
        FP8=out_fp8,
        SHARED_FP8=shared_fp8,
        BANDS=out_tiles.bands,
        **out_tiles.arguments(),
        **shape,
        **overlap(x),
    )
    return y.transpose(0, 1)


def whole(w: Matrix) -> tuple[torch.Tensor, torch.Tensor, bool]:
    """(values, scales, True if in FP8) of a matrix whose rows are all of one kind."""
    assert not w.num_fp8 or not w.plain.shape[-2], "rows of both kinds"
    assert w.group == FP8_K.value, w.group
    assert all(each.is_contiguous() for each in (w.fp8, w.scales, w.plain))
    return (w.fp8, w.scales, True) if w.num_fp8 else (w.plain, w.scales, False)


def inputs_of(
    x: torch.Tensor, split: Split | None, down: Matrix, num_pairs: int, fp8: bool
) -> tuple[tuple[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    """((x's rows, their scales), (memory of h's rows [pairs, dim], their scales)): both split in
    FP8, otherwise in ``x``'s dtype, with scales that are not read."""
    assert (down.num_fp8 > 0) == fp8, "experts of both kinds"
    dim = down.shape[-1]
    if not fp8:
        h = torch.empty((num_pairs, dim), dtype=x.dtype, device=x.device)
        return (x, down.scales), (h, down.scales)
    split = split or split_rows(x)
    assert split.is_of_rows(x)
    assert dim % H_GROUP.value == 0, dim
    h_split = Split.empty(num_pairs, dim, dim // H_GROUP.value, x.device)
    return (split.q, split.s), (h_split.q, h_split.s)


def tiles_of(num_tokens: int, fp8: bool) -> tuple[Tiles, Tiles]:
    """The tiles for (gate_up, down), as measured best on an H200."""
    if fp8:
        rows = 64 if num_tokens <= 8 else 128
        down = Tiles(rows, 128, 3, 4, split_stages=3, bands=2 if 1 < num_tokens <= 8 else 1)
        return Tiles(64, 128, 3, 4, split_stages=5), down
    if num_tokens <= 256:
        return Tiles(32, 256, 3, 4), Tiles(128, 128, 3, 4)
    return Tiles(64, 128, 3, 4), Tiles(128, 64, 4, 4)


def block_rows(num_tokens: int) -> int:
    """Number of rows of a product: if 8 of 256 experts are chosen, most lists fit in one product.

    NOTE: from 64 rows on other instructions sum in another order.
    """
    return 16 if num_tokens <= 256 else 32
