# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""A member's rows routed and pushed to all members, in one launch.

``route_shared`` and ``push`` in one: rows travel while other programs still route, and a layer has
a launch less. Reference: those two; test: tests/kernels/spread/test_spread.py.
"""

import torch
import triton
import triton.language as tl

from engine.kernels.experts.triton_route import best_experts, shared_activation
from engine.kernels.triton_overlap import LOADS_FIRST, overlap, wait_for_inputs
from engine.spread.memory import WORD_BYTES, Exchange
from engine.spread.triton_push import inbox_arguments, inbox_of, is_sent, own_none, send_x
from engine.spread.triton_words import (
    FIRST_FLAG,
    NUM_DECODING,
    NUM_LENDERS,
    PLACE,
    member_address,
    store_words,
)
from transport.wire.spread import MAX_MEMBERS

WORD = tl.constexpr(WORD_BYTES)
MOST_MEMBERS = tl.constexpr(MAX_MEMBERS)


@triton.jit
def _send_routing(
    p_to, token, b_ids, b_weights, flag, sent, live,
    TOP_K: tl.constexpr,
    BLOCK_K: tl.constexpr,
    ID_WORDS: tl.constexpr,
    WEIGHT_WORDS: tl.constexpr,
    WEIGHTS_OFFSET: tl.constexpr,
):  # fmt: skip
    """Store the ids where ``sent``, the weights where ``live``, both [1, BLOCK_K], as words."""
    o_k = tl.arange(0, BLOCK_K)[None, :]
    o_id = tl.arange(0, ID_WORDS)[:, None]
    b_id = tl.where(o_k < TOP_K, b_ids & 0xFFFF, 0xFFFF).to(tl.int64) << (o_k % 4 * 16).to(tl.int64)
    b_id_words = tl.sum(tl.where(o_k // 4 == o_id, b_id, 0), axis=1)
    o_id = tl.arange(0, ID_WORDS)
    store_words(p_to + (token * ID_WORDS + o_id) * WORD, b_id_words, flag, (o_id >= 0) & sent)
    o_weight = tl.arange(0, WEIGHT_WORDS)[:, None]
    b_bits = b_weights.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
    b_bits = b_bits << (o_k % 2 * 32).to(tl.int64)
    b_weight_words = tl.sum(tl.where(o_k // 2 == o_weight, b_bits, 0), axis=1)
    o_weight = tl.arange(0, WEIGHT_WORDS)
    p_words = p_to + WEIGHTS_OFFSET + (token * WEIGHT_WORDS + o_weight) * WORD
    store_words(p_words, b_weight_words, flag, (o_weight >= 0) & live)


@triton.jit(do_not_specialize=["layer", "most_owned"])
def _route_push_kernel(
    p_logits,
    p_shared,
    p_shared_gate,
    p_x,
    p_ids,
    p_hidden,
    p_live,
    p_owned,
    p_addresses,
    p_control,
    layer,
    most_owned,
    stride_part,
    stride_token,
    NUM_PARTS: tl.constexpr,
    EXPERTS: tl.constexpr,
    BLOCK_E: tl.constexpr,
    TOP_K: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SHARED_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ID_WORDS: tl.constexpr,
    WEIGHT_WORDS: tl.constexpr,
    X_WORDS: tl.constexpr,
    BLOCK_X: tl.constexpr,
    WEIGHTS_OFFSET: tl.constexpr,
    X_OFFSET: tl.constexpr,
    MEMBER_BYTES: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program (i, 0) routes token i and sends its ids and weights to all members, the next
    MAX_MEMBERS send its row to one member each, and the last ones do BLOCK_D columns each
    of its shared activation."""
    part = tl.program_id(1)
    num_decoding = tl.load(p_control + NUM_DECODING)
    num_members = num_decoding + tl.load(p_control + NUM_LENDERS)
    to = part - 1
    if (to >= num_members) & (to < MOST_MEMBERS):
        return
    token = tl.program_id(0).to(tl.int64)
    place = tl.load(p_control + PLACE)
    flag = (tl.load(p_control + FIRST_FLAG) + layer).to(tl.int32)
    wait_for_inputs(PDL)
    live = tl.load(p_live + token) >= 0
    tokens = tl.full((1,), 0, tl.int64) + token
    rows = tokens[:, None] * stride_token
    in_batch = tokens[:, None] >= 0
    if part == 0:
        if token == 0:
            own_none(p_owned, most_owned, BLOCK_E)
        b_ids, b_weights = best_experts(
            p_logits, rows, in_batch, stride_part,
            NUM_PARTS, EXPERTS, BLOCK_E, TOP_K, BLOCK_K, 1,
        )  # fmt: skip
        b_ids = tl.where(live, b_ids, -1)
        o_k = tl.arange(0, BLOCK_K)[None, :]
        tl.store(p_ids + token * TOP_K + o_k, b_ids, mask=o_k < TOP_K)
        for member in range(num_members):
            p_to = inbox_of(member_address(p_addresses, member), flag, MEMBER_BYTES)
            sent = is_sent(p_addresses, p_control, member, place, num_decoding)
            _send_routing(
                p_to + place * MEMBER_BYTES, token, b_ids, b_weights, flag, sent, sent & live,
                TOP_K, BLOCK_K, ID_WORDS, WEIGHT_WORDS, WEIGHTS_OFFSET,
            )  # fmt: skip
    elif to < MOST_MEMBERS:
        p_to = inbox_of(member_address(p_addresses, to), flag, MEMBER_BYTES) + place * MEMBER_BYTES
        sent = is_sent(p_addresses, p_control, to, place, num_decoding)
        send_x(p_to, p_x, token, flag, sent & live, X_WORDS, BLOCK_X, X_OFFSET)
    else:
        shared_activation(
            p_shared, p_shared_gate, p_hidden, tokens, rows, in_batch, to - MOST_MEMBERS,
            stride_part, NUM_PARTS, SHARED_DIM, BLOCK_D,
        )  # fmt: skip


def route_push(
    x: torch.Tensor,
    projected: torch.Tensor,
    num_experts: int,
    live: torch.Tensor,
    exchange: Exchange,
    layer: int,
    owned: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``route_shared`` of the rows x [rows, hidden], which ``push`` sends: (ids int32 [rows,
    top_k], the shared expert's activation [rows, dim]).

    projected [(parts,) rows, 2 * dim + num_experts + 1]; rows whose ``live`` [rows] is negative are
    padding, with the id -1. ``owned`` as in ``push``.
    """
    projected = projected if projected.dim() == 3 else projected.unsqueeze(0)
    num_parts, num_rows, width = projected.shape
    layout, top_k = exchange.layout, exchange.layout.top_k
    dim, odd = divmod(width - num_experts - 1, 2)
    assert dim > 0
    assert not odd
    assert 0 < num_rows <= layout.max_rows
    assert x.shape == (num_rows, layout.hidden)
    assert x.dtype.itemsize == layout.itemsize
    assert projected.stride(2) == 1
    assert top_k <= num_experts < 0xFFFF
    assert live.shape == (num_rows,)
    assert owned.dtype == torch.int32
    assert all(t.is_contiguous() for t in (x, live, owned))
    ids = torch.empty((num_rows, top_k), dtype=torch.int32, device=x.device)
    hidden = torch.empty((num_rows, dim), dtype=x.dtype, device=x.device)
    block_d = min(128, triton.next_power_of_2(dim))
    _route_push_kernel[(num_rows, 1 + MAX_MEMBERS + triton.cdiv(dim, block_d))](
        projected[..., 2 * dim :],
        projected,
        projected[..., 2 * dim + num_experts :],
        x.view(torch.int64),
        ids,
        hidden,
        live,
        owned,
        exchange.addresses,
        exchange.control,
        layer,
        owned.shape[0],
        projected.stride(0),
        projected.stride(1),
        NUM_PARTS=num_parts,
        EXPERTS=num_experts,
        BLOCK_E=triton.next_power_of_2(num_experts),
        # Every place of a word has an id, 0xFFFF where there is none.
        BLOCK_K=triton.next_power_of_2(4 * layout.id_words),
        SHARED_DIM=dim,
        BLOCK_D=block_d,
        num_warps=1,
        **inbox_arguments(exchange),
        **LOADS_FIRST,
        **overlap(x),
    )
    return ids, hidden
