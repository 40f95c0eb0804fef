# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""The owned experts of a group's rows, as triton_experts.py, with weights in NVFP4, int4 or int8.

A row's sum is formed in the order of the local step
(engine/kernels/experts/triton_experts_nvfp4.py), which depends neither on the tiles nor on the
number of rows: a result has the same bits whichever member computes it.

Reference: the local step, bit for bit, which torch_experts.add_experts judges; test:
tests/kernels/spread/test_spread_packed.py.
"""

import torch
import triton
import triton.language as tl

from engine.kernels.experts.triton_expert_tiles import pairs_of
from engine.kernels.experts.triton_experts_nvfp4 import FEW, SharedDown, Tiles, tiles_of
from engine.kernels.experts.triton_nvfp4_bands import (
    nvfp4_down_band,
    nvfp4_gate_up_band,
    shared_down_band,
)
from engine.kernels.formats.triton_fp8 import BLOCK_K
from engine.kernels.triton_overlap import overlap, wait_for_inputs
from engine.model.matrix import Matrix
from engine.model.packed_experts import PackedExperts
from engine.spread.memory import Exchange
from engine.spread.triton_collect import Collected, owned_expert
from engine.spread.triton_words import (
    PLACE,
    float_pointers,
    is_aborted,
    member_address,
    result_places,
)


@triton.jit(do_not_specialize=["num_rows"])
def _packed_gate_up_kernel(
    p_x,
    p_lists,
    p_owned,
    p_words,
    p_scales,
    p_matrix_scales,
    p_h,
    num_rows,
    K: tl.constexpr,
    DIM: tl.constexpr,
    TOP_K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr,
    WEIGHTS_FIRST: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program (b, i) does the band b of the owned expert i."""
    band = tl.program_id(0) * BLOCK_N
    wait_for_inputs(PDL)
    expert, count = owned_expert(p_owned, tl.program_id(1))
    for start in range(0, count, BLOCK_M):
        b_pair = pairs_of(p_lists + expert * num_rows, start, count, BLOCK_M)
        nvfp4_gate_up_band(
            p_x, p_words, p_scales, p_matrix_scales, expert, p_h, b_pair, band,
            K, DIM, TOP_K, BLOCK_N, STAGES, WEIGHTS_FIRST,
        )  # fmt: skip


@triton.jit(do_not_specialize=["rows_each", "num_rows", "shared_tiles"])
def _packed_down_kernel(
    p_h,
    p_lists,
    p_owned,
    p_weights,
    p_words,
    p_scales,
    p_matrix_scales,
    p_shared_h,
    p_shared_w,
    p_shared_scales,
    p_shared_factors,
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
    SHARED_N: tl.constexpr,
    SHARED_K: tl.constexpr,
    SHARED_FP8: tl.constexpr,
    SHARED_PACKED: tl.constexpr,
    STAGES: tl.constexpr,
    WEIGHTS_FIRST: tl.constexpr,
    PDL: tl.constexpr,
):
    """Programs of the first ``shared_tiles`` do the shared expert, the others an owned expert
    each."""
    SLOTS: tl.constexpr = TOP_K + 1
    tile = tl.program_id(1) - shared_tiles
    o_m = tl.arange(0, BLOCK_M)
    band = tl.program_id(0) * BLOCK_N
    place = tl.load(p_control + PLACE)
    if tile < 0:
        b_token = (tile + shared_tiles) * BLOCK_M + o_m
        b_row = tl.where(b_token < rows_each, b_token, -1)
        b_weight = tl.full((BLOCK_M,), 1.0, tl.float32)
        b_out = b_token * SLOTS + TOP_K
        p_own = float_pointers(member_address(p_addresses, place) + RETURNED)
        wait_for_inputs(PDL)
        shared_down_band(
            p_shared_h, p_shared_w, p_shared_scales, p_shared_factors, tile * 0, p_own,
            b_row, b_out, b_weight, band, HIDDEN, DIM, BLOCK_N, SHARED_N, SHARED_K,
            SHARED_FP8, SHARED_PACKED, STAGES, WEIGHTS_FIRST,
        )  # fmt: skip
    else:
        # Written by the launch before the last one: they can be read before the wait.
        expert, count = owned_expert(p_owned, tile)
        # One program always waits: this kernel must not end before its inputs are written.
        if count > 0 or tile == 0:
            wait_for_inputs(PDL)
        aborted = is_aborted(member_address(p_addresses, place))
        for start in range(0, count, BLOCK_M):
            b_pair = pairs_of(p_lists + expert * num_rows, start, count, BLOCK_M)
            b_weight = tl.load(p_weights + b_pair, mask=b_pair >= 0, other=0.0)
            # What came of missing rows is kept from other members.
            b_pair = tl.where(aborted == 1, -1, b_pair)
            p_home, b_out = result_places(p_addresses, b_pair, rows_each, RETURNED, TOP_K)
            nvfp4_down_band(
                p_h, p_words, p_scales, p_matrix_scales, expert, p_home, b_pair, b_out, b_weight,
                band, HIDDEN, DIM, BLOCK_N, STAGES, WEIGHTS_FIRST,
            )  # fmt: skip


def packed_experts(
    rows: Collected,
    gate_up: PackedExperts,
    down: PackedExperts,
    shared: tuple[torch.Tensor, Matrix] | None,
    exchange: Exchange,
    tiles: tuple[Tiles, Tiles] | None = None,
) -> None:
    """As ``triton_experts.experts``; hidden is a multiple of 256, and dim of 128."""
    (num_rows, hidden), (num_experts, _, dim) = rows.x.shape, down.shape
    rows_each, top_k = rows.rows_each, rows.weights.shape[1]
    assert gate_up.shape == (num_experts, 2 * dim, hidden)
    assert (gate_up.runs, down.runs) == ((dim, dim), (hidden,))
    assert down.shape[1] == hidden == exchange.layout.hidden
    in_tiles, out_tiles = tiles or tiles_of(max(num_rows, FEW + 1))
    assert dim % in_tiles.rows == hidden % out_tiles.rows == dim % BLOCK_K.value == 0
    of_shared = SharedDown.of(None if shared is None else shared[1], rows.x)
    shared_tiles, shared_h = 0, rows.x
    if shared is not None:
        shared_h, shared_down = shared
        assert shared_h.shape == (rows_each, dim)
        assert shared_h.is_contiguous()
        assert shared_down.shape == (hidden, dim)
        shared_tiles = triton.cdiv(rows_each, out_tiles.pairs)
    h = torch.empty((num_rows * top_k, dim), dtype=rows.x.dtype, device=rows.x.device)
    most_owned = rows.owned.shape[0]
    _packed_gate_up_kernel[(dim // in_tiles.rows, most_owned)](
        rows.x, rows.lists, rows.owned, gate_up.words, gate_up.scales, gate_up.matrix_scales,
        h, num_rows,
        K=hidden, DIM=dim, TOP_K=top_k, BLOCK_M=in_tiles.pairs, BLOCK_N=in_tiles.rows,
        STAGES=in_tiles.stages, WEIGHTS_FIRST=in_tiles.weights_first, num_warps=in_tiles.warps,
        **overlap(h),
    )  # fmt: skip
    _packed_down_kernel[(hidden // out_tiles.rows, shared_tiles + most_owned)](
        h, rows.lists, rows.owned, rows.weights, down.words, down.scales, down.matrix_scales,
        shared_h, of_shared.w, of_shared.scales, of_shared.factors,
        exchange.addresses, exchange.control, rows_each, num_rows, shared_tiles,
        RETURNED=exchange.layout.returned, HIDDEN=hidden, DIM=dim, TOP_K=top_k,
        BLOCK_M=out_tiles.pairs, BLOCK_N=out_tiles.rows,
        STAGES=out_tiles.stages, WEIGHTS_FIRST=out_tiles.weights_first, num_warps=out_tiles.warps,
        **of_shared.arguments(out_tiles.rows), **overlap(h),
    )  # fmt: skip
