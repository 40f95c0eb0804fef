# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""The owned experts of a group's rows, with each result stored where its row is at home.

Tiles, and the order in which a row's sum is formed, are those of the local step
(engine/kernels/experts/triton_experts.py), so a result has the same bits whichever member computes
it. The shared expert is computed at home, for the member's own rows.

Reference: the local step, bit for bit, which torch_experts.add_experts judges; test:
tests/kernels/spread/test_spread.py.
"""

import torch
import triton
import triton.language as tl

from engine.kernels.experts.triton_expert_bands import down_band
from engine.kernels.experts.triton_experts import (
    Tiles,
    block_rows,
    expert_down,
    expert_gate_up,
    inputs_of,
    tiles_of,
    whole,
)
from engine.kernels.formats.triton_fp8 import BLOCK_K as FP8_K
from engine.kernels.triton_overlap import overlap, wait_for_inputs
from engine.model.matrix import Matrix
from engine.model.packed_experts import PackedExperts
from engine.model.weights import Experts
from engine.spread.memory import Exchange
from engine.spread.triton_collect import Collected, owned_expert
from engine.spread.triton_packed_experts import packed_experts
from engine.spread.triton_words import (
    PLACE,
    float_pointers,
    is_aborted,
    member_address,
    result_places,
)


@triton.jit(do_not_specialize=["num_rows"])
def _gate_up_kernel(
    p_x,
    p_s,
    p_lists,
    p_owned,
    p_w,
    p_scales,
    p_h,
    p_hs,
    num_rows,
    K: tl.constexpr,
    DIM: tl.constexpr,
    TOP_K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    FP8: tl.constexpr,
    SPLIT_STAGES: tl.constexpr,
    PDL: tl.constexpr,
):
    """``engine.kernels.experts.triton_experts.gate_up_kernel`` of owned experts: program (b, i)
    does the band b of the owned expert i."""
    band = tl.program_id(0) * BLOCK_N
    wait_for_inputs(PDL)
    expert, count = owned_expert(p_owned, tl.program_id(1))
    if count > 0:
        p_w += expert.to(tl.int64) * (2 * DIM * K)
        if FP8:
            p_scales += (expert * (2 * DIM // FP8_K) + band // FP8_K) * (K // FP8_K)
        p_list = p_lists + expert * num_rows
        for start in range(0, count, BLOCK_M):
            o_pair = start + tl.arange(0, BLOCK_M)
            b_pair = tl.load(p_list + o_pair, mask=o_pair < count, other=-1)
            expert_gate_up(
                p_x, p_s, p_w, p_scales, p_h, p_hs, b_pair, band,
                K, DIM, TOP_K, BLOCK_M, BLOCK_N, BLOCK_K, FP8, SPLIT_STAGES,
            )  # fmt: skip


@triton.jit(do_not_specialize=["rows_each", "num_rows", "shared_tiles"])
def _down_kernel(
    p_h,
    p_hs,
    p_lists,
    p_owned,
    p_weights,
    p_w,
    p_scales,
    p_shared_h,
    p_shared_w,
    p_shared_scales,
    p_addresses,
    p_control,
    rows_each,
    num_rows,
    shared_tiles,
    RETURNED: tl.constexpr,
    HIDDEN: tl.constexpr,
    DIM: tl.constexpr,
    TOP_K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    FP8: tl.constexpr,
    SHARED_FP8: tl.constexpr,
    SPLIT_STAGES: tl.constexpr,
    BANDS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Programs of the first ``shared_tiles`` do the shared expert, the others an owned
    expert each."""
    SLOTS: tl.constexpr = TOP_K + 1
    tile = tl.program_id(1) - shared_tiles
    o_m = tl.arange(0, BLOCK_M)
    band = tl.program_id(0) * (BLOCK_N * BANDS)
    place = tl.load(p_control + PLACE)
    if tile < 0:
        b_token = (tile + shared_tiles) * BLOCK_M + o_m
        b_row = tl.where(b_token < rows_each, b_token, -1)
        p_own = float_pointers(member_address(p_addresses, place) + RETURNED)
        wait_for_inputs(PDL)
        b_weight = tl.full((BLOCK_M,), 1.0, tl.float32)
        for i in range(BANDS):
            down_band(
                p_shared_h, p_shared_w, p_shared_scales, tile * 0, p_own,
                b_row, b_token * SLOTS + TOP_K, b_weight, band + i * BLOCK_N,
                HIDDEN, DIM, BLOCK_M, BLOCK_N, BLOCK_K, SHARED_FP8,
            )  # fmt: skip
    else:
        # Written by the launch before the last one: they can be read before the wait.
        expert, count = owned_expert(p_owned, tile)
        if count == 0:
            # One program always waits: this kernel must not end before its inputs are written.
            if tile == 0:
                wait_for_inputs(PDL)
        else:
            wait_for_inputs(PDL)
            aborted = is_aborted(member_address(p_addresses, place))
            p_list = p_lists + expert * num_rows
            for start in range(0, count, BLOCK_M):
                b_pair = tl.load(p_list + start + o_m, mask=start + o_m < count, other=-1)
                b_weight = tl.load(p_weights + b_pair, mask=b_pair >= 0, other=0.0)
                # What came of missing rows is kept from other members.
                b_pair = tl.where(aborted == 1, -1, b_pair)
                p_home, b_out = result_places(p_addresses, b_pair, rows_each, RETURNED, TOP_K)
                expert_down(
                    p_h, p_hs, p_w, p_scales, expert, p_home, b_pair, b_out, b_weight, band,
                    HIDDEN, DIM, BLOCK_M, BLOCK_N, BLOCK_K, FP8, SPLIT_STAGES, BANDS,
                )  # fmt: skip


def owned_experts(
    rows: Collected,
    gate_up: Experts,
    down: Experts,
    shared: tuple[torch.Tensor, Matrix] | None,
    exchange: Exchange,
) -> None:
    """``experts``, or with packed weights ``packed_experts``."""
    if isinstance(gate_up, PackedExperts):
        assert isinstance(down, PackedExperts)
        packed_experts(rows, gate_up, down, shared, exchange)
    else:
        assert isinstance(down, Matrix)
        experts(rows, gate_up, down, shared, exchange)


def experts(
    rows: Collected,
    gate_up: Matrix,
    down: Matrix,
    shared: tuple[torch.Tensor, Matrix] | None,
    exchange: Exchange,
    tiles: tuple[Tiles, Tiles] | None = None,
) -> None:
    """Store into each row's ``returned`` what this member's experts give for it, and into its own
    the shared expert's, where it has rows.

    gate_up [experts, 2 * dim, hidden], down [experts, hidden, dim]; shared: the shared expert's
    scaled activation [rows each, dim] and its down [hidden, dim].
    """
    (num_rows, hidden), (num_experts, _, dim) = rows.x.shape, down.shape
    rows_each, top_k = rows.rows_each, rows.weights.shape[1]
    assert gate_up.shape == (num_experts, 2 * dim, hidden)
    assert down.shape[1] == hidden == exchange.layout.hidden
    w_in, s_in, in_fp8 = whole(gate_up)
    w_out, s_out, out_fp8 = whole(down)
    shared_w, shared_scales, shared_fp8 = w_out, s_out, out_fp8
    in_tiles, out_tiles = tiles or tiles_of(num_rows, in_fp8)
    block_m = block_rows(num_rows)
    shared_tiles, shared_h = 0, rows.x
    if shared is not None:
        shared_h, shared_down = shared
        shared_w, shared_scales, shared_fp8 = whole(shared_down)
        assert shared_h.shape == (rows_each, dim)
        assert shared_h.is_contiguous()
        assert shared_down.shape == (hidden, dim)
        shared_tiles = triton.cdiv(rows_each, block_m)
    assert dim % in_tiles.rows == hidden % in_tiles.k == 0
    assert hidden % (out_tiles.rows * out_tiles.bands) == dim % out_tiles.k == 0
    assert out_fp8 or out_tiles.bands == 1
    (x, x_scales), (h, h_scales) = inputs_of(rows.x, None, down, num_rows * top_k, in_fp8)
    most_owned = rows.owned.shape[0]
    _gate_up_kernel[(dim // in_tiles.rows, most_owned)](
        x,
        x_scales,
        rows.lists,
        rows.owned,
        w_in,
        s_in,
        h,
        h_scales,
        num_rows,
        K=hidden,
        DIM=dim,
        TOP_K=top_k,
        BLOCK_M=block_m,
        FP8=in_fp8,
        **in_tiles.arguments(),
        **overlap(h),
    )
    _down_kernel[(hidden // out_tiles.rows // out_tiles.bands, shared_tiles + most_owned)](
        h,
        h_scales,
        rows.lists,
        rows.owned,
        rows.weights,
        w_out,
        s_out,
        shared_h,
        shared_w,
        shared_scales,
        exchange.addresses,
        exchange.control,
        rows_each,
        num_rows,
        shared_tiles,
        RETURNED=exchange.layout.returned,
        HIDDEN=hidden,
        DIM=dim,
        TOP_K=top_k,
        BLOCK_M=block_m,
        FP8=out_fp8,
        SHARED_FP8=shared_fp8,
        BANDS=out_tiles.bands,
        **out_tiles.arguments(),
        **overlap(h),
    )
