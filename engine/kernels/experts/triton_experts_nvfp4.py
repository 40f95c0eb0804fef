# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Experts whose weights are in NVFP4, int4 or int8, for up to 2,048 tokens.

    h[t, j] = silu(gate_e x_t) * (up_e x_t);   y[t, j] = p[t, j] * down_e h[t, j],   e = ids[t, j]

As ``triton_experts``, with weights that are unpacked in registers. A row's sum has the same order
whatever the number of tokens.

Reference: torch_experts.add_experts with dequantised weights; test:
tests/kernels/experts/test_triton_nvfp4.py, tests/kernels/experts/test_triton_integers.py.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from engine.kernels.experts.triton_expert_bands import all_tokens
from engine.kernels.experts.triton_expert_tiles import pairs_of
from engine.kernels.experts.triton_experts import whole
from engine.kernels.experts.triton_nvfp4_bands import (
    PARTS,
    nvfp4_down_band,
    nvfp4_gate_up_band,
    nvfp4_gate_up_parts,
    shared_down_band,
)
from engine.kernels.experts.triton_plan import plan
from engine.kernels.formats.triton_fp8 import BLOCK_K
from engine.kernels.formats.triton_nvfp4 import COLUMNS
from engine.kernels.triton_overlap import overlap, wait_for_inputs
from engine.model.matrix import Matrix
from engine.model.packed_experts import PackedExperts

FEW = 4
"""The most tokens whose parts of sums are computed side by side."""
SHARED_ROWS = 32
"""Rows of the shared expert's ``down`` that are multiplied at once: with more, a program would take
more memory of a multiprocessor than the experts' rows do."""
UNPLANNED = 16
"""The most tokens for which each program looks for its pairs among all."""


@dataclass(frozen=True)
class Tiles:
    """Rows of the weights that a program multiplies, warps, and rounds in flight."""

    rows: int
    warps: int
    stages: int
    pairs: int = 16
    """Pairs of one product; below 16 the parts of sums are computed side by side."""
    weights_first: bool = False
    """The order of a product's operands: with 64 rows and more the weights' bits are unpacked to
    the registers from which the tensor cores read them. The results are the same."""


@dataclass(frozen=True)
class SharedDown:
    """The shared expert's ``down`` as kernels take it: packed, all in FP8 or all plain."""

    w: torch.Tensor
    scales: torch.Tensor
    factors: torch.Tensor
    in_fp8: bool = False
    is_packed: bool = False

    @classmethod
    def of(cls, down: Matrix | None, unused: torch.Tensor) -> "SharedDown":
        """``unused`` stands for what there is not; all of it without a shared expert."""
        if down is None:
            return cls(unused, unused, unused)
        if (packed := down.packed) is not None:  # one tensor, with one matrix scale
            assert not down.plain.shape[0]
            return cls(packed.words, packed.scales, packed.matrix_scales, is_packed=True)
        w, scales, in_fp8 = whole(down)
        return cls(w, scales, unused, in_fp8)

    def arguments(self, band: int) -> dict[str, Any]:
        """Launch arguments of a kernel whose programs multiply ``band`` rows."""
        return {
            "SHARED_N": min(band, SHARED_ROWS),
            "SHARED_K": BLOCK_K.value,
            "SHARED_FP8": self.in_fp8,
            "SHARED_PACKED": self.is_packed,
        }


@triton.jit(do_not_specialize=["num_tokens"])
def nvfp4_gate_up_kernel(
    p_x,
    p_ids,
    p_lists,
    p_counts,
    p_words,
    p_scales,
    p_matrix_scales,
    p_h,
    num_tokens,
    K: tl.constexpr,
    DIM: tl.constexpr,
    TOP_K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr,
    WEIGHTS_FIRST: tl.constexpr,
    PLANNED: tl.constexpr,
    SINGLE: tl.constexpr,
    PDL: tl.constexpr,
):
    band = tl.program_id(0) * BLOCK_N
    wait_for_inputs(PDL)
    if PLANNED:
        expert = tl.program_id(1)
        count = tl.load(p_counts + expert)
        for start in range(0, count, BLOCK_M):
            b_pair = pairs_of(p_lists + expert * num_tokens, start, count, BLOCK_M)
            nvfp4_gate_up_band(
                p_x, p_words, p_scales, p_matrix_scales, expert, p_h, b_pair, band,
                K, DIM, TOP_K, BLOCK_N, STAGES, WEIGHTS_FIRST,
            )  # fmt: skip
    else:
        expert, is_first, b_pair = all_tokens(
            p_ids, tl.program_id(1), num_tokens, TOP_K, BLOCK_M, SINGLE
        )
        if is_first and BLOCK_M < 16:
            nvfp4_gate_up_parts(
                p_x, p_words, p_scales, p_matrix_scales, expert, p_h, b_pair, band,
                K, DIM, TOP_K, BLOCK_M, BLOCK_N, STAGES,
            )  # fmt: skip
        elif is_first:
            nvfp4_gate_up_band(
                p_x, p_words, p_scales, p_matrix_scales, expert, p_h, b_pair, band,
                K, DIM, TOP_K, BLOCK_N, STAGES, WEIGHTS_FIRST,
            )  # fmt: skip


@triton.jit(do_not_specialize=["num_tokens", "shared_tiles"])
def nvfp4_down_kernel(
    p_h,
    p_ids,
    p_lists,
    p_counts,
    p_weights,
    p_words,
    p_scales,
    p_matrix_scales,
    p_shared_h,
    p_shared_w,
    p_shared_scales,
    p_shared_factors,
    p_y,
    num_tokens,
    shared_tiles,
    HIDDEN: tl.constexpr,
    DIM: tl.constexpr,
    TOP_K: tl.constexpr,
    SLOTS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SHARED_N: tl.constexpr,
    SHARED_K: tl.constexpr,
    SHARED_FP8: tl.constexpr,
    SHARED_PACKED: tl.constexpr,
    STAGES: tl.constexpr,
    WEIGHTS_FIRST: tl.constexpr,
    PLANNED: tl.constexpr,
    SINGLE: tl.constexpr,
    PDL: tl.constexpr,
):
    """Compute y. The first ``shared_tiles`` tiles are the shared expert's."""
    tile = tl.program_id(1) - shared_tiles
    o_m = tl.arange(0, BLOCK_M)
    band = tl.program_id(0) * BLOCK_N
    if tile < 0:
        b_token = (tile + shared_tiles) * BLOCK_M + o_m
        b_row = tl.where(b_token < num_tokens, b_token, -1)
        b_weight = tl.full((BLOCK_M,), 1.0, tl.float32)
        b_out = b_token * SLOTS + TOP_K
        wait_for_inputs(PDL)
        shared_down_band(
            p_shared_h, p_shared_w, p_shared_scales, p_shared_factors, tile * 0, p_y,
            b_row, b_out, b_weight, band, HIDDEN, DIM, BLOCK_N, SHARED_N, SHARED_K,
            SHARED_FP8, SHARED_PACKED, STAGES, WEIGHTS_FIRST,
        )  # fmt: skip
    elif PLANNED:
        count = tl.load(p_counts + tile)
        # One program always waits: this kernel must not end before its inputs are written.
        if count > 0 or tile == 0:
            wait_for_inputs(PDL)
        for start in range(0, count, BLOCK_M):
            b_pair = pairs_of(p_lists + tile * num_tokens, start, count, BLOCK_M)
            b_weight = tl.load(p_weights + b_pair, mask=b_pair >= 0, other=0.0)
            b_out = b_pair // TOP_K * SLOTS + b_pair % TOP_K
            nvfp4_down_band(
                p_h, p_words, p_scales, p_matrix_scales, tile, p_y, b_pair, b_out, b_weight, band,
                HIDDEN, DIM, BLOCK_N, STAGES, WEIGHTS_FIRST,
            )  # fmt: skip
    else:
        expert, is_first, b_pair = all_tokens(p_ids, tile, num_tokens, TOP_K, BLOCK_M, SINGLE)
        b_weight = tl.load(p_weights + b_pair, mask=b_pair >= 0, other=0.0)
        wait_for_inputs(PDL)
        if is_first:
            b_out = b_pair // TOP_K * SLOTS + b_pair % TOP_K
            nvfp4_down_band(
                p_h, p_words, p_scales, p_matrix_scales, expert, p_y, b_pair, b_out, b_weight,
                band, HIDDEN, DIM, BLOCK_N, STAGES, WEIGHTS_FIRST,
            )  # fmt: skip


def experts_nvfp4(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    gate_up: PackedExperts,
    down: PackedExperts,
    shared: tuple[torch.Tensor, Matrix] | None = None,
    tiles: tuple[Tiles, Tiles] | None = None,
) -> torch.Tensor:
    """Contributions [top_k (+ 1), tokens, hidden] float32, to be added per token in that order.

    x [tokens, hidden]; ids int32 and weights float32 [tokens, top_k], -1 for no expert: such
    contributions are undefined. gate_up [experts, 2 * dim, hidden] with a matrix scale for gate and
    one for up; down [experts, hidden, dim] with one. hidden is a multiple of 256, and dim of 64,
    with a shared expert of 128.
    shared: the shared expert's scaled activation [tokens, dim] and its down [hidden, dim].
    """
    (num_tokens, hidden), (num_experts, _, dim) = x.shape, down.shape
    top_k = ids.shape[1]
    assert gate_up.shape == (num_experts, 2 * dim, hidden)
    assert down.shape == (num_experts, hidden, dim)
    assert gate_up.runs == (dim, dim)
    assert down.runs == (hidden,)
    assert ids.shape == weights.shape == (num_tokens, top_k)
    assert ids.dtype == torch.int32
    assert weights.dtype == torch.float32
    assert all(t.is_contiguous() for t in (x, ids, weights))
    in_tiles, out_tiles = tiles or tiles_of(num_tokens)
    assert in_tiles.pairs >= 16 or num_tokens <= in_tiles.pairs
    assert hidden % (COLUMNS.value * PARTS.value) == 0, "each part of a sum is as long"
    assert dim % COLUMNS.value == 0, dim
    assert dim % in_tiles.rows == hidden % out_tiles.rows == 0
    planned = num_tokens > UNPLANNED
    lists, counts = plan(ids, num_experts) if planned else (ids, ids)
    grid_m = num_experts if planned else ids.numel()
    slots, shared_tiles = top_k, 0
    shared_h, of_shared = x, SharedDown.of(None if shared is None else shared[1], x)
    if shared is not None:
        shared_h, shared_down = shared
        assert shared_h.shape == (num_tokens, dim)
        assert shared_down.shape == (hidden, dim)
        assert shared_h.is_contiguous()
        assert dim % BLOCK_K.value == 0, dim
        slots, shared_tiles = top_k + 1, triton.cdiv(num_tokens, out_tiles.pairs)
    h = torch.empty((num_tokens * top_k, dim), dtype=x.dtype, device=x.device)
    y = torch.empty((num_tokens, slots, hidden), dtype=torch.float32, device=x.device)
    shape = {
        "DIM": dim,
        "TOP_K": top_k,
        "PLANNED": planned,
        "SINGLE": num_tokens == 1,
        **overlap(x),
    }
    nvfp4_gate_up_kernel[(dim // in_tiles.rows, grid_m)](
        x,
        ids,
        lists,
        counts,
        gate_up.words,
        gate_up.scales,
        gate_up.matrix_scales,
        h,
        num_tokens,
        K=hidden,
        BLOCK_M=in_tiles.pairs,
        BLOCK_N=in_tiles.rows,
        STAGES=in_tiles.stages,
        WEIGHTS_FIRST=in_tiles.weights_first,
        num_warps=in_tiles.warps,
        **shape,
    )
    nvfp4_down_kernel[(hidden // out_tiles.rows, shared_tiles + grid_m)](
        h,
        ids,
        lists,
        counts,
        weights,
        down.words,
        down.scales,
        down.matrix_scales,
        shared_h,
        of_shared.w,
        of_shared.scales,
        of_shared.factors,
        y,
        num_tokens,
        shared_tiles,
        HIDDEN=hidden,
        SLOTS=slots,
        BLOCK_M=out_tiles.pairs,
        BLOCK_N=out_tiles.rows,
        **of_shared.arguments(out_tiles.rows),
        STAGES=out_tiles.stages,
        WEIGHTS_FIRST=out_tiles.weights_first,
        num_warps=out_tiles.warps,
        **shape,
    )
    return y.transpose(0, 1)


def tiles_of(num_tokens: int) -> tuple[Tiles, Tiles]:
    """The tiles for (gate_up, down), as measured best on an H100."""
    if num_tokens == 1:
        return Tiles(8, 2, 4, FEW), Tiles(16, 1, 4)
    if num_tokens <= FEW:
        return Tiles(16, 4, 4, FEW), Tiles(64, 2, 4)
    if num_tokens <= 256:
        return Tiles(64, 4, 5), Tiles(64, 2, 4)
    return Tiles(64, 4, 4, 32), Tiles(128, 4, 4)
