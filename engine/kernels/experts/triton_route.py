# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Routes each token to its experts, and computes the shared expert's activation.

    p = softmax(logits);   ids = the top_k of p, ties to the lowest id;   weights = p / Σ_chosen p

A softmax renormalised over the chosen is the softmax of the chosen logits alone. Models that do not
renormalise use p itself. In float32.

Reference: torch_experts.route; test: tests/kernels/experts/test_triton_moe.py.
"""

import torch
import triton
import triton.language as tl

from engine.kernels.triton_overlap import LOADS_FIRST, overlap, wait_for_inputs

TAKEN = tl.constexpr(-0x80000000)
"""A key below the key of every logit; it marks a chosen expert."""


@triton.jit
def _sum_parts(p, mask, stride_part, NUM_PARTS: tl.constexpr):
    b_sum = tl.load(p, mask=mask, other=0.0).to(tl.float32)
    for part in tl.static_range(1, NUM_PARTS):
        b_sum += tl.load(p + part * stride_part, mask=mask, other=0.0).to(tl.float32)
    return b_sum


@triton.jit
def _flip(bits):
    """Convert float32 bits to int32 keys in the same order; its own inverse."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def best_experts(
    p_logits,
    rows,
    in_batch,
    stride_part,
    NUM_PARTS: tl.constexpr,
    EXPERTS: tl.constexpr,
    BLOCK_E: tl.constexpr,
    TOP_K: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_T: tl.constexpr,
    RENORMALISED: tl.constexpr = True,
):
    """(ids int32, weights float32), both [BLOCK_T, BLOCK_K], of the tokens at ``rows`` [BLOCK_T, 1]
    elements behind ``p_logits``; columns from TOP_K on are undefined."""
    o_e = tl.arange(0, BLOCK_E)[None, :]
    mask = in_batch & (o_e < EXPERTS)
    # + 0.0 makes one zero of the two.
    b_logits = _sum_parts(p_logits + rows + o_e, mask, stride_part, NUM_PARTS) + 0.0
    b_order = tl.maximum(_flip(b_logits.to(tl.int32, bitcast=True)), TAKEN + 1)
    b_order = tl.where(o_e < EXPERTS, b_order, TAKEN)
    o_k = tl.arange(0, BLOCK_K)[None, :]
    b_best = tl.full((BLOCK_T, BLOCK_K), TAKEN, tl.int32)
    b_ids = tl.zeros((BLOCK_T, BLOCK_K), tl.int32)
    # 32-bit maxima and minima of a warp are one instruction each.
    for j in tl.static_range(TOP_K):
        b_max = tl.max(b_order, axis=1)[:, None]
        b_id = tl.min(tl.where(b_order == b_max, o_e, BLOCK_E), axis=1)[:, None]
        b_best = tl.where(o_k == j, b_max, b_best)
        b_ids = tl.where(o_k == j, b_id, b_ids)
        b_order = tl.where(o_e == b_id, TAKEN, b_order)
    b_value = _flip(b_best).to(tl.float32, bitcast=True)
    b_value = tl.where(o_k < TOP_K, b_value, float("-inf"))
    b_most = tl.max(b_value, axis=1)[:, None]
    b_exp = tl.exp(b_value - b_most)
    if RENORMALISED:
        b_sum = tl.sum(b_exp, axis=1)[:, None]
    else:
        b_all = tl.where(mask, tl.exp(b_logits - b_most), 0.0)
        b_sum = tl.sum(b_all, axis=1)[:, None]
    return b_ids, b_exp / b_sum


@triton.jit
def shared_activation(
    p_shared,
    p_shared_gate,
    p_hidden,
    tokens,
    rows,
    in_batch,
    block,
    stride_part,
    NUM_PARTS: tl.constexpr,
    SHARED_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Store the columns of ``block`` of the shared expert's scaled activation of ``tokens``."""
    o_d = (block * BLOCK_D + tl.arange(0, BLOCK_D))[None, :]
    valid = in_batch & (o_d < SHARED_DIM)
    p_gate = p_shared + rows + o_d
    b_gate = _sum_parts(p_gate, valid, stride_part, NUM_PARTS)
    b_up = _sum_parts(p_gate + SHARED_DIM, valid, stride_part, NUM_PARTS)
    b_hidden = b_gate / (1.0 + tl.exp(-b_gate)) * b_up
    b_scale = _sum_parts(p_shared_gate + rows, in_batch, stride_part, NUM_PARTS)
    b_scale = 1.0 / (1.0 + tl.exp(-b_scale))
    tl.store(
        p_hidden + tokens.to(tl.int64)[:, None] * SHARED_DIM + o_d,
        (b_hidden * b_scale).to(p_hidden.dtype.element_ty),
        mask=valid,
    )


@triton.jit(do_not_specialize=["num_tokens"])
def _route_kernel(
    p_logits,
    p_shared,
    p_shared_gate,
    p_ids,
    p_weights,
    p_hidden,
    p_live,
    num_tokens,
    stride_part,
    stride_token,
    NUM_PARTS: tl.constexpr,
    EXPERTS: tl.constexpr,
    BLOCK_E: tl.constexpr,
    TOP_K: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SHARED_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_T: tl.constexpr,
    HAS_LIVE: tl.constexpr,
    RENORMALISED: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program (i, 0) routes a block of tokens; the others compute BLOCK_D columns each of their
    shared activation."""
    tokens = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    wait_for_inputs(PDL)
    in_batch = (tokens < num_tokens)[:, None]
    live = in_batch
    if HAS_LIVE:
        live &= (tl.load(p_live + tokens, mask=tokens < num_tokens, other=-1) >= 0)[:, None]
    rows = tokens.to(tl.int64)[:, None] * stride_token

    if tl.program_id(1) == 0:
        b_ids, b_weights = best_experts(
            p_logits, rows, in_batch, stride_part,
            NUM_PARTS, EXPERTS, BLOCK_E, TOP_K, BLOCK_K, BLOCK_T, RENORMALISED,
        )  # fmt: skip
        o_k = tl.arange(0, BLOCK_K)[None, :]
        o_out = tokens[:, None] * TOP_K + o_k
        stored = in_batch & (o_k < TOP_K)
        tl.store(p_ids + o_out, tl.where(live, b_ids, -1), mask=stored)
        tl.store(p_weights + o_out, tl.where(live, b_weights, 0.0), mask=stored)
    elif SHARED_DIM > 0:
        shared_activation(
            p_shared, p_shared_gate, p_hidden, tokens, rows, in_batch, tl.program_id(1) - 1,
            stride_part, NUM_PARTS, SHARED_DIM, BLOCK_D,
        )  # fmt: skip


def route(
    logits: torch.Tensor,
    top_k: int,
    live: torch.Tensor | None = None,
    *,
    renormalised: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose experts -> (ids int32, weights float32), both [tokens, top_k], by falling weight.

    logits [tokens, experts] or slices to be added [parts, tokens, experts], rows contiguous.
    Tokens whose ``live`` [tokens] is negative get the id -1 and the weight 0.
    """
    logits = logits if logits.dim() == 3 else logits.unsqueeze(0)
    ids, weights, _ = _launch(
        logits, logits.shape[2], 0, top_k, live, logits.dtype, renormalised=renormalised
    )
    return ids, weights


def route_shared(
    projected: torch.Tensor,
    num_experts: int,
    top_k: int,
    dtype: torch.dtype,
    live: torch.Tensor | None = None,
    *,
    renormalised: bool = True,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``route`` and ``sigmoid(shared gate) * silu(gate) * up`` [tokens, dim] of the shared expert.

    projected [(parts,) tokens, 2 * dim + num_experts + 1]: the rows of ``MoeWeights.in_proj``.
    The shared expert's scale commutes with its down projection. The activation of tokens that are
    not ``live`` is undefined.
    """
    projected = projected if projected.dim() == 3 else projected.unsqueeze(0)
    dim, odd = divmod(projected.shape[2] - num_experts - 1, 2)
    assert dim > 0
    assert not odd
    return _launch(projected, num_experts, dim, top_k, live, dtype, renormalised=renormalised)


def _launch(
    projected: torch.Tensor,
    num_experts: int,
    dim: int,
    top_k: int,
    live: torch.Tensor | None,
    dtype: torch.dtype,
    *,
    renormalised: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    num_parts, num_tokens, _ = projected.shape
    assert projected.stride(2) == 1
    assert top_k <= num_experts
    assert live is None or (live.shape == (num_tokens,) and live.is_contiguous()), live
    ids = torch.empty((num_tokens, top_k), dtype=torch.int32, device=projected.device)
    weights = torch.empty((num_tokens, top_k), dtype=torch.float32, device=projected.device)
    hidden = torch.empty((num_tokens, dim), dtype=dtype, device=projected.device)
    if num_tokens:
        block_t = 1 if num_tokens <= 1024 else 4
        block_d = min(128, triton.next_power_of_2(max(dim, 1)))
        _route_kernel[(triton.cdiv(num_tokens, block_t), 1 + triton.cdiv(dim, block_d))](
            projected[..., 2 * dim :],
            projected,
            projected[..., 2 * dim + num_experts :] if dim else projected,
            ids,
            weights,
            hidden,
            live if live is not None else ids,
            num_tokens,
            projected.stride(0),
            projected.stride(1),
            NUM_PARTS=num_parts,
            EXPERTS=num_experts,
            BLOCK_E=triton.next_power_of_2(num_experts),
            TOP_K=top_k,
            BLOCK_K=triton.next_power_of_2(top_k),
            SHARED_DIM=dim,
            BLOCK_D=block_d,
            BLOCK_T=block_t,
            HAS_LIVE=live is not None,
            RENORMALISED=renormalised,
            num_warps=1,
            **LOADS_FIRST,
            **overlap(projected),
        )
    return ids, weights, hidden
