# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Experts whose weights are in NVFP4 (W4A16), for steps of decode.

    h[t, j] = silu(gate_e x_t) * (up_e x_t);   y[t, j] = p[t, j] * down_e h[t, j],   e = ids[t, j]

As ``triton_experts``, with weights that are unpacked in registers. A row's sum has the same order
whatever the number of tokens.

Reference: torch_experts.add_experts with dequantised weights; test:
tests/kernels/test_triton_nvfp4.py.
"""

import torch
import triton
import triton.language as tl

from engine.kernels.triton_expert_bands import all_tokens
from engine.kernels.triton_expert_tiles import pairs_of
from engine.kernels.triton_nvfp4 import GROUP, HALF, Nvfp4Experts, add_nvfp4
from engine.kernels.triton_plan import plan

BLOCK_M = 16
BANDS = 32, 64
"""Rows of the weights that a program of gate_up and of down multiplies."""


@triton.jit
def _gate_up_band(
    p_x,
    p_codes,
    p_scales,
    p_matrix_scales,
    expert,
    p_h,
    b_pair,
    band,
    K: tl.constexpr,
    DIM: tl.constexpr,
    TOP_K: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    o_n = band + tl.arange(0, BLOCK_N)
    valid = (b_pair >= 0)[:, None]
    p_rows = p_x + (tl.maximum(b_pair, 0) // TOP_K)[:, None] * K + tl.arange(0, HALF)[None, :]
    o_row = (expert.to(tl.int64) * (2 * DIM) + o_n)[:, None]
    p_gate = p_codes + o_row * (K // 2)
    p_gate_scales = p_scales + o_row * (K // GROUP)
    b_gate = tl.zeros((b_pair.shape[0], BLOCK_N), tl.float32)
    b_up = tl.zeros((b_pair.shape[0], BLOCK_N), tl.float32)
    for k in tl.range(0, K, 2 * HALF):
        b_low = tl.load(p_rows + k, mask=valid, other=0.0)
        b_high = tl.load(p_rows + k + HALF, mask=valid, other=0.0)
        p_k, p_k_scales = p_gate + k // 2, p_gate_scales + k // GROUP
        b_gate = add_nvfp4(b_gate, b_low, b_high, p_k, p_k_scales, BLOCK_N)
        p_k, p_k_scales = p_k + DIM * (K // 2), p_k_scales + DIM * (K // GROUP)
        b_up = add_nvfp4(b_up, b_low, b_high, p_k, p_k_scales, BLOCK_N)
    b_gate *= tl.load(p_matrix_scales + 2 * expert) * 0.5
    b_up *= tl.load(p_matrix_scales + 2 * expert + 1) * 0.5
    b_h = b_gate / (1.0 + tl.exp(-b_gate)) * b_up
    tl.store(p_h + b_pair[:, None] * DIM + o_n[None, :], b_h.to(p_h.dtype.element_ty), mask=valid)


@triton.jit
def _down_band(
    p_h,
    p_codes,
    p_scales,
    p_matrix_scales,
    expert,
    p_weights,
    p_y,
    b_pair,
    band,
    HIDDEN: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    o_n = band + tl.arange(0, BLOCK_N)
    valid = (b_pair >= 0)[:, None]
    p_rows = p_h + tl.maximum(b_pair, 0)[:, None] * DIM + tl.arange(0, HALF)[None, :]
    o_row = (expert.to(tl.int64) * HIDDEN + o_n)[:, None]
    p_codes += o_row * (DIM // 2)
    p_scales += o_row * (DIM // GROUP)
    b_y = tl.zeros((b_pair.shape[0], BLOCK_N), tl.float32)
    for k in tl.range(0, DIM, 2 * HALF):
        b_low = tl.load(p_rows + k, mask=valid, other=0.0)
        b_high = tl.load(p_rows + k + HALF, mask=valid, other=0.0)
        b_y = add_nvfp4(b_y, b_low, b_high, p_codes + k // 2, p_scales + k // GROUP, BLOCK_N)
    b_weight = tl.load(p_weights + b_pair, mask=b_pair >= 0, other=0.0)
    b_y *= (tl.load(p_matrix_scales + expert) * 0.5 * b_weight)[:, None]
    tl.store(p_y + b_pair[:, None].to(tl.int64) * HIDDEN + o_n[None, :], b_y, mask=valid)


@triton.jit(do_not_specialize=["num_tokens"])
def nvfp4_gate_up_kernel(
    p_x,
    p_ids,
    p_lists,
    p_counts,
    p_codes,
    p_scales,
    p_matrix_scales,
    p_h,
    num_tokens,
    K: tl.constexpr,
    DIM: tl.constexpr,
    TOP_K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PLANNED: tl.constexpr,
    SINGLE: tl.constexpr,
):
    band = tl.program_id(0) * BLOCK_N
    if PLANNED:
        expert = tl.program_id(1)
        count = tl.load(p_counts + expert)
        for start in range(0, count, BLOCK_M):
            b_pair = pairs_of(p_lists + expert * num_tokens, start, count, BLOCK_M)
            _gate_up_band(
                p_x, p_codes, p_scales, p_matrix_scales, expert, p_h, b_pair, band,
                K, DIM, TOP_K, BLOCK_N,
            )  # fmt: skip
    else:
        expert, is_first, b_pair = all_tokens(
            p_ids, tl.program_id(1), num_tokens, TOP_K, BLOCK_M, SINGLE
        )
        if is_first:
            _gate_up_band(
                p_x, p_codes, p_scales, p_matrix_scales, expert, p_h, b_pair, band,
                K, DIM, TOP_K, BLOCK_N,
            )  # fmt: skip


@triton.jit(do_not_specialize=["num_tokens"])
def nvfp4_down_kernel(
    p_h,
    p_ids,
    p_lists,
    p_counts,
    p_codes,
    p_scales,
    p_matrix_scales,
    p_weights,
    p_y,
    num_tokens,
    HIDDEN: tl.constexpr,
    DIM: tl.constexpr,
    TOP_K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PLANNED: tl.constexpr,
    SINGLE: tl.constexpr,
):
    band = tl.program_id(0) * BLOCK_N
    if PLANNED:
        expert = tl.program_id(1)
        count = tl.load(p_counts + expert)
        for start in range(0, count, BLOCK_M):
            b_pair = pairs_of(p_lists + expert * num_tokens, start, count, BLOCK_M)
            _down_band(
                p_h, p_codes, p_scales, p_matrix_scales, expert, p_weights, p_y, b_pair, band,
                HIDDEN, DIM, BLOCK_N,
            )  # fmt: skip
    else:
        expert, is_first, b_pair = all_tokens(
            p_ids, tl.program_id(1), num_tokens, TOP_K, BLOCK_M, SINGLE
        )
        if is_first:
            _down_band(
                p_h, p_codes, p_scales, p_matrix_scales, expert, p_weights, p_y, b_pair, band,
                HIDDEN, DIM, BLOCK_N,
            )  # fmt: skip


def experts_nvfp4(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    gate_up: Nvfp4Experts,
    down: Nvfp4Experts,
) -> torch.Tensor:
    """Contributions [top_k, tokens, hidden] float32, to be added per token in that order.

    x [tokens, hidden]; ids int32 and weights float32 [tokens, top_k], -1 for no expert: such
    contributions are undefined. gate_up [experts, 2 * dim, hidden] with a matrix scale for gate and
    one for up; down [experts, hidden, dim] with one. hidden and dim are multiples of 128.
    """
    (num_tokens, hidden), (num_experts, _, dim) = x.shape, down.shape
    top_k = ids.shape[1]
    assert gate_up.shape == (num_experts, 2 * dim, hidden)
    assert down.shape == (num_experts, hidden, dim)
    assert gate_up.matrix_scales.shape == (num_experts, 2)
    assert down.matrix_scales.shape == (num_experts, 1)
    assert ids.shape == weights.shape == (num_tokens, top_k)
    assert ids.dtype == torch.int32
    assert weights.dtype == torch.float32
    assert all(t.is_contiguous() for t in (x, ids, weights))
    planned = num_tokens > BLOCK_M
    lists, counts = plan(ids, num_experts) if planned else (ids, ids)
    grid_m = num_experts if planned else ids.numel()
    h = torch.empty((num_tokens * top_k, dim), dtype=x.dtype, device=x.device)
    y = torch.empty((num_tokens, top_k, hidden), dtype=torch.float32, device=x.device)
    shape = {
        "DIM": dim,
        "TOP_K": top_k,
        "BLOCK_M": BLOCK_M,
        "PLANNED": planned,
        "SINGLE": num_tokens == 1,
    }
    nvfp4_gate_up_kernel[(dim // BANDS[0], grid_m)](
        x,
        ids,
        lists,
        counts,
        gate_up.codes,
        gate_up.scales,
        gate_up.matrix_scales,
        h,
        num_tokens,
        K=hidden,
        BLOCK_N=BANDS[0],
        **shape,
    )
    nvfp4_down_kernel[(hidden // BANDS[1], grid_m)](
        h,
        ids,
        lists,
        counts,
        down.codes,
        down.scales,
        down.matrix_scales,
        weights,
        y,
        num_tokens,
        HIDDEN=hidden,
        BLOCK_N=BANDS[1],
        **shape,
    )
    return y.transpose(0, 1)
