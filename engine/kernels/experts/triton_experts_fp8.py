# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Experts in FP8 for more than 512 tokens: grouped products on FP8 tensor cores.

    h[p] = silu(gate_e x_t) * (up_e x_t);   y[p] = p[p] * down_e h[p],   pair p = (t, j), e = ids[p]

As ``triton_experts_prefill``, with ``x`` and ``h`` quantised per token and 128 columns. A sum has
the scale of its last 128 columns, the token's times the weights'. Before the next columns are added
it is multiplied by the old scale over the new scale. Sums of 128 columns, each scaled and then
added, would need twice the registers, which gate and up together do not leave.

Reference: torch_experts.add_experts; test: tests/kernels/test_fp8.py.
"""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from engine.kernels.experts.triton_expert_tiles import Tiles, list_of, pairs_of, sizes, tile_of
from engine.kernels.experts.triton_plan import plan_both
from engine.kernels.formats.triton_quantise import BLOCK, Quantised, quantise_rows, quantised
from engine.kernels.triton_overlap import overlap, wait_for_inputs
from engine.model.matrix import FP8, Matrix

TILES = Tiles(128, 256, BLOCK, 4, 8, 1, 64), Tiles(64, 128, BLOCK, 3, 4)
"""The tiles for gate_up and for down, as measured best on an H200."""


@triton.jit
def _gate_up_tile(
    p_x,
    p_x_scales,
    stride_scale,
    w_desc,
    p_w_scales,
    p_h,
    p_h_scales,
    b_pair,
    h_row,
    w_row,
    o_band,
    K: tl.constexpr,
    DIM: tl.constexpr,
    TOP_K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    # Rows without a pair read token 0: a mask would cost every row of every tile.
    b_token = (tl.maximum(b_pair, 0) // TOP_K).to(tl.int64)
    p_rows = p_x + b_token[:, None] * K + tl.arange(0, BLOCK_K)[None, :]
    p_row_scales = p_x_scales + b_token
    row = w_row + o_band
    p_gate_scales = p_w_scales + row // BLOCK_K * (K // BLOCK_K)
    p_up_scales = p_gate_scales + DIM // BLOCK_K * (K // BLOCK_K)
    b_gate = tl.zeros((BLOCK_M, BLOCK_K), tl.float32)
    b_up = tl.zeros((BLOCK_M, BLOCK_K), tl.float32)
    b_last = tl.load(p_row_scales)
    last_gate = tl.load(p_gate_scales)
    last_up = tl.load(p_up_scales)
    for k in tl.range(0, K, BLOCK_K):
        b_x = tl.load(p_rows + k)
        b_scale = tl.load(p_row_scales + k // BLOCK_K * stride_scale)
        gate_scale = tl.load(p_gate_scales + k // BLOCK_K)
        up_scale = tl.load(p_up_scales + k // BLOCK_K)
        b_step = b_last / b_scale
        b_gate *= (b_step * (last_gate / gate_scale))[:, None]
        b_gate = tl.dot(b_x, tl.trans(w_desc.load([row, k])), b_gate)
        b_up *= (b_step * (last_up / up_scale))[:, None]
        b_up = tl.dot(b_x, tl.trans(w_desc.load([row + DIM, k])), b_up)
        b_last, last_gate, last_up = b_scale, gate_scale, up_scale
    b_gate *= (b_last * last_gate)[:, None]
    b_up *= (b_last * last_up)[:, None]
    b_q, b_scales = quantised(b_gate / (1.0 + tl.exp(-b_gate)) * b_up)
    o_h = (h_row + tl.arange(0, BLOCK_M)).to(tl.int64)
    valid = b_pair >= 0
    o_n = o_band + tl.arange(0, BLOCK_K)
    tl.store(p_h + o_h[:, None] * DIM + o_n[None, :], b_q, mask=valid[:, None])
    tl.store(p_h_scales + o_h * (DIM // BLOCK_K) + o_band // BLOCK_K, b_scales, mask=valid)


@triton.jit(do_not_specialize=["num_tokens", "stride_scale", "num_tiles"])
def _gate_up_kernel(
    p_x,
    p_x_scales,
    p_lists,
    p_counts,
    p_tiles,
    w_desc,
    p_w_scales,
    p_h,
    p_h_scales,
    num_tokens,
    stride_scale,
    num_tiles,
    K: tl.constexpr,
    DIM: tl.constexpr,
    TOP_K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
    TAIL: tl.constexpr,
    PDL: tl.constexpr,
):
    wait_for_inputs(PDL)
    GROUPS: tl.constexpr = DIM // BLOCK_K
    tile = tl.program_id(0) // GROUPS
    o_band = tl.program_id(0) % GROUPS * BLOCK_K
    expert, start, h_row = tile_of(p_tiles, tile, num_tiles)
    if start < 0:
        return
    p_list, count = list_of(p_lists, p_counts, expert, num_tokens)
    w_row = expert * (2 * DIM)
    if count - start > TAIL:
        b_pair = pairs_of(p_list, start, count, BLOCK_M)
        _gate_up_tile(
            p_x, p_x_scales, stride_scale, w_desc, p_w_scales, p_h, p_h_scales, b_pair, h_row,
            w_row, o_band, K, DIM, TOP_K, BLOCK_M, BLOCK_K,
        )  # fmt: skip
    elif TAIL > 0:
        b_rest = pairs_of(p_list, start, count, TAIL)
        _gate_up_tile(
            p_x, p_x_scales, stride_scale, w_desc, p_w_scales, p_h, p_h_scales, b_rest, h_row,
            w_row, o_band, K, DIM, TOP_K, TAIL, BLOCK_K,
        )  # fmt: skip


@triton.jit
def _down_tile(
    h_desc,
    p_h_scales,
    w_desc,
    p_w_scales,
    p_weights,
    p_y,
    b_pair,
    h_row,
    w_row,
    o_band,
    HIDDEN: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    valid = b_pair >= 0
    b_weight = tl.load(p_weights + b_pair, mask=valid, other=0.0)[:, None]
    p_row_scales = p_h_scales + (h_row + tl.arange(0, BLOCK_M)).to(tl.int64) * (DIM // BLOCK_K)
    p_w_scales += (w_row + o_band) // BLOCK_K * (DIM // BLOCK_K)
    b_y = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in tl.range(0, DIM, BLOCK_K):
        b_part = tl.dot(h_desc.load([h_row, k]), tl.trans(w_desc.load([w_row + o_band, k])))
        b_scale = tl.load(p_row_scales + k // BLOCK_K, mask=valid, other=0.0)
        b_y += b_part * (b_scale * tl.load(p_w_scales + k // BLOCK_K))[:, None]
    o_n = o_band + tl.arange(0, BLOCK_N)
    p_out = p_y + b_pair[:, None].to(tl.int64) * HIDDEN + o_n[None, :]
    tl.store(p_out, (b_y * b_weight).to(p_y.dtype.element_ty), mask=valid[:, None])


@triton.jit(do_not_specialize=["num_tokens", "num_tiles"])
def _down_kernel(
    h_desc,
    h_rest_desc,
    p_h_scales,
    p_lists,
    p_counts,
    p_tiles,
    p_weights,
    w_desc,
    p_w_scales,
    p_y,
    num_tokens,
    num_tiles,
    HIDDEN: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    TAIL: tl.constexpr,
    PDL: tl.constexpr,
):
    wait_for_inputs(PDL)
    GROUPS: tl.constexpr = HIDDEN // BLOCK_N
    tile = tl.program_id(0) // GROUPS
    o_band = tl.program_id(0) % GROUPS * BLOCK_N
    expert, start, h_row = tile_of(p_tiles, tile, num_tiles)
    if start < 0:
        return
    p_list, count = list_of(p_lists, p_counts, expert, num_tokens)
    w_row = expert * HIDDEN
    if count - start > TAIL:
        b_pair = pairs_of(p_list, start, count, BLOCK_M)
        _down_tile(
            h_desc, p_h_scales, w_desc, p_w_scales, p_weights, p_y, b_pair, h_row, w_row, o_band,
            HIDDEN, DIM, BLOCK_M, BLOCK_N, BLOCK_K,
        )  # fmt: skip
    elif TAIL > 0:
        b_rest = pairs_of(p_list, start, count, TAIL)
        _down_tile(
            h_rest_desc, p_h_scales, w_desc, p_w_scales, p_weights, p_y, b_rest, h_row, w_row,
            o_band, HIDDEN, DIM, TAIL, BLOCK_N, BLOCK_K,
        )  # fmt: skip


def results(
    x: torch.Tensor, top_k: int, dim: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Uninitialised memory for h e4m3 [pairs, dim], its scales [pairs, dim / 128], and y [tokens,
    top_k, hidden]."""
    (num_tokens, hidden), device = x.shape, x.device
    h = torch.empty((num_tokens * top_k, dim), dtype=FP8, device=device)
    h_scales = torch.empty((len(h), dim // BLOCK), dtype=torch.float32, device=device)
    return h, h_scales, torch.empty((num_tokens, top_k, hidden), dtype=x.dtype, device=device)


def experts_fp8(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    gate_up: Matrix,
    down: Matrix,
    tiles: tuple[Tiles, Tiles] | None = None,
    quantised_x: Quantised | None = None,
) -> torch.Tensor:
    """Contributions [top_k, tokens, hidden] in ``x``'s dtype, to be added per token in that order.

    x [tokens, hidden]; ids int32 and weights float32 [tokens, top_k], -1 for no expert: such
    contributions are undefined. gate_up [experts, 2 * dim, hidden], down [experts, hidden, dim],
    all rows in FP8. ``quantised_x``: ``x`` in FP8, if it has been made already.
    """
    num_tokens, hidden, dim, top_k = sizes(x, ids, weights, gate_up.fp8, down.fp8)
    assert gate_up.group == down.group == BLOCK
    assert gate_up.scales.is_contiguous()
    assert down.scales.is_contiguous()
    in_tiles, out_tiles = tiles or TILES
    # A band of gate and one of up fill the columns that share a scale of h.
    assert in_tiles.rows == 2 * BLOCK
    assert in_tiles.k == out_tiles.k == BLOCK
    assert BLOCK % out_tiles.rows == 0
    assert hidden % BLOCK == dim % BLOCK == 0
    lists, counts, in_plan, out_plan = plan_both(
        ids, down.shape[0], in_tiles.pairs, out_tiles.pairs
    )
    q, q_scales = quantised_x or quantise_rows(x)
    h, h_scales, y = results(x, top_k, dim)
    _gate_up_kernel[(in_plan.shape[1] * (dim // BLOCK),)](
        q,
        q_scales,
        lists,
        counts,
        in_plan,
        TensorDescriptor.from_tensor(gate_up.fp8.view(-1, hidden), [BLOCK, BLOCK]),
        gate_up.scales,
        h,
        h_scales,
        num_tokens,
        q_scales.stride(1),
        in_plan.shape[1],
        K=hidden,
        DIM=dim,
        TOP_K=top_k,
        **in_tiles.arguments(x),
        **overlap(x),
    )
    _down_kernel[(out_plan.shape[1] * (hidden // out_tiles.rows),)](
        TensorDescriptor.from_tensor(h, [out_tiles.pairs, BLOCK]),
        TensorDescriptor.from_tensor(h, [out_tiles.tail or out_tiles.pairs, BLOCK]),
        h_scales,
        lists,
        counts,
        out_plan,
        weights,
        TensorDescriptor.from_tensor(down.fp8.view(-1, dim), [out_tiles.rows, BLOCK]),
        down.scales,
        y,
        num_tokens,
        out_plan.shape[1],
        HIDDEN=hidden,
        DIM=dim,
        BLOCK_N=out_tiles.rows,
        **out_tiles.arguments(x),
        **overlap(x),
    )
    return y.transpose(0, 1)
