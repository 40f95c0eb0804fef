# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Experts for more than 512 tokens: grouped matrix products at the tensor cores' speed.

    h[p] = silu(gate_e x_t) * (up_e x_t);   y[p] = p[p] * down_e h[p],   pair p = (t, j), e = ids[p]

Tiles of pairs of one expert (``plan``) gather their rows of ``x``. ``h`` is in the order of the
lists, so that the copy engine fetches it like the weights; ``y`` is in the order of pairs. The
bands of an expert's weights are adjacent in the grid, so its tiles find rows and weights in the L2
cache.

Reference: torch_experts.add_experts; test: tests/kernels/experts/test_triton_moe.py.
"""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from engine.kernels.experts.triton_expert_tiles import Tiles, list_of, pairs_of, sizes, tile_of
from engine.kernels.experts.triton_plan import plan_both
from engine.kernels.triton_dot import dot
from engine.kernels.triton_overlap import overlap, wait_for_inputs
from engine.model.matrix import Matrix

TILES = Tiles(128, 256, 64, 4, 8, 1, 64), Tiles(128, 256, 64, 4, 8, 1, 64)
"""The tiles for gate_up and for down, as measured best on an H200."""


@triton.jit
def _gate_up_tile(
    p_x,
    w_desc,
    p_h,
    b_pair,
    h_row,
    w_row,
    o_band,
    K: tl.constexpr,
    DIM: tl.constexpr,
    TOP_K: tl.constexpr,
    BANDS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    HALF: tl.constexpr = BLOCK_N // 2
    # Rows without a pair read token 0: a mask would cost every row of every tile.
    p_rows = p_x + (tl.maximum(b_pair, 0) // TOP_K)[:, None] * K + tl.arange(0, BLOCK_K)[None, :]
    valid = (b_pair >= 0)[:, None]
    for band in range(BANDS):
        b_gate = tl.zeros((BLOCK_M, HALF), tl.float32)
        b_up = tl.zeros((BLOCK_M, HALF), tl.float32)
        row = w_row + o_band + band * HALF
        for k in tl.range(0, K, BLOCK_K):
            b_x = tl.load(p_rows + k)
            b_gate = dot(b_x, tl.trans(w_desc.load([row, k])), b_gate)
            b_up = dot(b_x, tl.trans(w_desc.load([row + DIM, k])), b_up)
        b_h = b_gate / (1.0 + tl.exp(-b_gate)) * b_up
        o_n = o_band + band * HALF + tl.arange(0, HALF)
        o_h = h_row + tl.arange(0, BLOCK_M)
        p_out = p_h + o_h[:, None].to(tl.int64) * DIM + o_n[None, :]
        tl.store(p_out, b_h.to(p_h.dtype.element_ty), mask=valid)


@triton.jit(do_not_specialize=["num_tokens", "num_tiles"])
def _gate_up_kernel(
    p_x,
    p_lists,
    p_counts,
    p_tiles,
    w_desc,
    p_h,
    num_tokens,
    num_tiles,
    K: tl.constexpr,
    DIM: tl.constexpr,
    TOP_K: tl.constexpr,
    BANDS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    TAIL: tl.constexpr,
    PDL: tl.constexpr,
):
    wait_for_inputs(PDL)
    GROUPS: tl.constexpr = 2 * DIM // (BLOCK_N * BANDS)
    tile = tl.program_id(0) // GROUPS
    o_band = tl.program_id(0) % GROUPS * (BANDS * BLOCK_N // 2)
    expert, start, h_row = tile_of(p_tiles, tile, num_tiles)
    if start < 0:
        return
    p_list, count = list_of(p_lists, p_counts, expert, num_tokens)
    w_row = expert * (2 * DIM)
    if count - start > TAIL:
        b_pair = pairs_of(p_list, start, count, BLOCK_M)
        _gate_up_tile(
            p_x, w_desc, p_h, b_pair, h_row, w_row, o_band,
            K, DIM, TOP_K, BANDS, BLOCK_M, BLOCK_N, BLOCK_K,
        )  # fmt: skip
    elif TAIL > 0:
        b_rest = pairs_of(p_list, start, count, TAIL)
        _gate_up_tile(
            p_x, w_desc, p_h, b_rest, h_row, w_row, o_band,
            K, DIM, TOP_K, BANDS, TAIL, BLOCK_N, BLOCK_K,
        )  # fmt: skip


@triton.jit
def _down_tile(
    h_desc,
    w_desc,
    p_weights,
    p_y,
    b_pair,
    h_row,
    w_row,
    o_band,
    HIDDEN: tl.constexpr,
    DIM: tl.constexpr,
    BANDS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    valid = b_pair >= 0
    b_scale = tl.load(p_weights + b_pair, mask=valid, other=0.0)[:, None]
    for band in range(BANDS):
        b_y = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        row = o_band + band * BLOCK_N
        for k in tl.range(0, DIM, BLOCK_K):
            b_y = dot(h_desc.load([h_row, k]), tl.trans(w_desc.load([w_row + row, k])), b_y)
        o_n = row + tl.arange(0, BLOCK_N)
        p_out = p_y + b_pair[:, None].to(tl.int64) * HIDDEN + o_n[None, :]
        tl.store(p_out, (b_y * b_scale).to(p_y.dtype.element_ty), mask=valid[:, None])


@triton.jit(do_not_specialize=["num_tokens", "num_tiles"])
def _down_kernel(
    h_desc,
    h_rest_desc,
    p_lists,
    p_counts,
    p_tiles,
    p_weights,
    w_desc,
    p_y,
    num_tokens,
    num_tiles,
    HIDDEN: tl.constexpr,
    DIM: tl.constexpr,
    BANDS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    TAIL: tl.constexpr,
    PDL: tl.constexpr,
):
    wait_for_inputs(PDL)
    GROUPS: tl.constexpr = HIDDEN // (BLOCK_N * BANDS)
    tile = tl.program_id(0) // GROUPS
    o_band = tl.program_id(0) % GROUPS * (BANDS * BLOCK_N)
    expert, start, h_row = tile_of(p_tiles, tile, num_tiles)
    if start < 0:
        return
    p_list, count = list_of(p_lists, p_counts, expert, num_tokens)
    w_row = expert * HIDDEN
    if count - start > TAIL:
        b_pair = pairs_of(p_list, start, count, BLOCK_M)
        _down_tile(
            h_desc, w_desc, p_weights, p_y, b_pair, h_row, w_row, o_band,
            HIDDEN, DIM, BANDS, BLOCK_M, BLOCK_N, BLOCK_K,
        )  # fmt: skip
    elif TAIL > 0:
        b_rest = pairs_of(p_list, start, count, TAIL)
        _down_tile(
            h_rest_desc, w_desc, p_weights, p_y, b_rest, h_row, w_row, o_band,
            HIDDEN, DIM, BANDS, TAIL, BLOCK_N, BLOCK_K,
        )  # fmt: skip


def experts_prefill(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    gate_up: Matrix,
    down: Matrix,
    tiles: tuple[Tiles, Tiles] | None = None,
) -> torch.Tensor:
    """Contributions [top_k, tokens, hidden] in ``x``'s dtype, to be added per token in that order.

    x [tokens, hidden]; ids int32 and weights float32 [tokens, top_k], -1 for no expert: such
    contributions are undefined. gate_up [experts, 2 * dim, hidden], down [experts, hidden, dim],
    no row in FP8.
    """
    w_in, w_out = gate_up.plain, down.plain
    num_tokens, hidden, dim, top_k = sizes(x, ids, weights, w_in, w_out)
    in_tiles, out_tiles = tiles or TILES
    assert (2 * dim) % (in_tiles.rows * in_tiles.bands) == hidden % in_tiles.k == 0
    assert hidden % (out_tiles.rows * out_tiles.bands) == dim % out_tiles.k == 0
    lists, counts, in_plan, out_plan = plan_both(
        ids, w_in.shape[0], in_tiles.pairs, out_tiles.pairs
    )
    h = torch.empty((num_tokens * top_k, dim), dtype=x.dtype, device=x.device)
    y = torch.empty((num_tokens, top_k, hidden), dtype=x.dtype, device=x.device)
    groups = 2 * dim // (in_tiles.rows * in_tiles.bands)
    _gate_up_kernel[(in_plan.shape[1] * groups,)](
        x,
        lists,
        counts,
        in_plan,
        TensorDescriptor.from_tensor(w_in.view(-1, hidden), [in_tiles.rows // 2, in_tiles.k]),
        h,
        num_tokens,
        in_plan.shape[1],
        K=hidden,
        DIM=dim,
        TOP_K=top_k,
        BANDS=in_tiles.bands,
        BLOCK_N=in_tiles.rows,
        **in_tiles.arguments(x),
        **overlap(x),
    )
    groups = hidden // (out_tiles.rows * out_tiles.bands)
    _down_kernel[(out_plan.shape[1] * groups,)](
        TensorDescriptor.from_tensor(h, [out_tiles.pairs, out_tiles.k]),
        TensorDescriptor.from_tensor(h, [out_tiles.tail or out_tiles.pairs, out_tiles.k]),
        lists,
        counts,
        out_plan,
        weights,
        TensorDescriptor.from_tensor(w_out.view(-1, dim), [out_tiles.rows, out_tiles.k]),
        y,
        num_tokens,
        out_plan.shape[1],
        HIDDEN=hidden,
        DIM=dim,
        BANDS=out_tiles.bands,
        BLOCK_N=out_tiles.rows,
        **out_tiles.arguments(x),
        **overlap(x),
    )
    return y.transpose(0, 1)
