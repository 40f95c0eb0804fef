# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""A member's rows, and where they were routed, into the inbox of every member.

A member that decodes pushes from the launch that routes its rows (triton_route_push.py); ``push``
sends what is routed already, as the row of padding of a lender is. Reference: the local step;
tests: tests/kernels/spread/test_spread.py.
"""

from typing import Any

import torch
import triton
import triton.language as tl

from engine.kernels.triton_overlap import overlap, wait_for_inputs
from engine.spread.memory import HEADER_BYTES, WORD_BYTES, Exchange
from engine.spread.triton_words import (
    FIRST_FLAG,
    MASK,
    MOST_MEMBERS,
    NUM_DECODING,
    NUM_LENDERS,
    PLACE,
    TURN,
    agreed,
    is_aborted,
    member_address,
    store_words,
)
from transport.wire.spread import MAX_MEMBERS

INBOX = tl.constexpr(HEADER_BYTES)
WORD = tl.constexpr(WORD_BYTES)
MOST_THREADS = 256
"""The most threads of a program here. Blocks have at least as many elements, one per thread."""


def inbox_arguments(exchange: Exchange) -> dict[str, Any]:
    """Constants of kernels that write or read an inbox."""
    layout = exchange.layout
    return {
        "TOP_K": layout.top_k,
        "ID_WORDS": layout.id_words,
        "WEIGHT_WORDS": layout.weight_words,
        "X_WORDS": layout.x_words,
        "BLOCK_X": max(triton.next_power_of_2(layout.x_words), MOST_THREADS),
        "WEIGHTS_OFFSET": layout.weights_offset,
        "X_OFFSET": layout.x_offset,
        "MEMBER_BYTES": layout.member_bytes,
    }


@triton.jit
def inbox_of(address, flag, MEMBER_BYTES: tl.constexpr):
    """Where the inbox of this use begins in the memory at ``address``."""
    return address + INBOX + (flag & 1).to(tl.int64) * (MOST_MEMBERS * MEMBER_BYTES)


@triton.jit
def is_sent(p_addresses, p_control, member, place, num_decoding):
    """Whether the member at ``place`` sends its rows to ``member``: both take part in this step,
    and it is not aborted."""
    lent_to = ((agreed(p_control, MASK) >> member) & 1 == 1) & (place < num_decoding)
    takes_part = (agreed(p_control, TURN) >= 0) & ((member < num_decoding) | lent_to)
    return takes_part & (is_aborted(member_address(p_addresses, place)) == 0)


@triton.jit
def send_x(
    p_to, p_x, row, flag, live,
    X_WORDS: tl.constexpr,
    BLOCK_X: tl.constexpr,
    X_OFFSET: tl.constexpr,
):  # fmt: skip
    """Store a row where ``live``. ``p_to`` is the own part of the receiver's inbox."""
    o_x = tl.arange(0, BLOCK_X)
    in_row = o_x < X_WORDS
    b_x = tl.load(p_x + row * X_WORDS + o_x, mask=in_row, other=0)
    store_words(p_to + X_OFFSET + row * (X_WORDS * WORD) + o_x * WORD, b_x, flag, in_row & live)


@triton.jit
def own_none(p_owned, most_owned, BLOCK: tl.constexpr):
    """Write that no expert is owned, before ``collect`` writes which are."""
    for start in range(0, most_owned, BLOCK):
        o_owned = start + tl.arange(0, BLOCK)
        tl.store(p_owned + o_owned, 0, mask=o_owned < most_owned)


@triton.jit(do_not_specialize=["layer", "most_owned"])
def _push_kernel(
    p_x,
    p_ids,
    p_weights,
    p_owned,
    p_addresses,
    p_control,
    layer,
    most_owned,
    TOP_K: tl.constexpr,
    ID_WORDS: tl.constexpr,
    WEIGHT_WORDS: tl.constexpr,
    X_WORDS: tl.constexpr,
    BLOCK_X: tl.constexpr,
    WEIGHTS_OFFSET: tl.constexpr,
    X_OFFSET: tl.constexpr,
    MEMBER_BYTES: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program (i, m) pushes row i to member m; of padding only that it has no experts."""
    member = tl.program_id(1)
    num_decoding = tl.load(p_control + NUM_DECODING)
    row = tl.program_id(0).to(tl.int64)
    if (member >= num_decoding + tl.load(p_control + NUM_LENDERS)) & (member + row > 0):
        return
    place = tl.load(p_control + PLACE)
    flag = (tl.load(p_control + FIRST_FLAG) + layer).to(tl.int32)
    p_to = inbox_of(member_address(p_addresses, member), flag, MEMBER_BYTES)
    p_to += place * MEMBER_BYTES
    wait_for_inputs(PDL)
    if member + row == 0:
        own_none(p_owned, most_owned, BLOCK_X)
    sent = is_sent(p_addresses, p_control, member, place, num_decoding)
    p_ids += row * TOP_K
    live = sent & (tl.load(p_ids) >= 0)

    o_id = tl.arange(0, ID_WORDS)
    b_ids = tl.zeros((ID_WORDS,), tl.int64)
    for i in tl.static_range(4):
        place_of_id = o_id * 4 + i
        b_id = tl.load(p_ids + place_of_id, mask=place_of_id < TOP_K, other=-1)
        b_ids |= (b_id & 0xFFFF).to(tl.int64) << (16 * i)
    store_words(p_to + (row * ID_WORDS + o_id) * WORD, b_ids, flag, (o_id >= 0) & sent)

    o_weight = tl.arange(0, WEIGHT_WORDS)
    b_weights = tl.load(p_weights + row * WEIGHT_WORDS + o_weight)
    p_weight_words = p_to + WEIGHTS_OFFSET + (row * WEIGHT_WORDS + o_weight) * WORD
    store_words(p_weight_words, b_weights, flag, (o_weight >= 0) & live)

    send_x(p_to, p_x, row, flag, live, X_WORDS, BLOCK_X, X_OFFSET)


def push(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    exchange: Exchange,
    layer: int,
    owned: torch.Tensor,
) -> None:
    """Send this member's rows to all decoding members, itself included, and to the lenders that
    take part: of the step's layer ``layer``.

    x [rows, hidden]; ids int32 and weights float32 [rows, top_k], -1 in the rows of padding. All
    decoding members push as many rows; a lender pushes one row of padding. ``owned``
    of ``Collected`` is set to 0 for ``collect``.
    """
    (num_rows, hidden), layout = x.shape, exchange.layout
    assert 0 < num_rows <= layout.max_rows
    assert hidden == layout.hidden
    assert x.dtype.itemsize == layout.itemsize
    assert ids.shape == weights.shape == (num_rows, layout.top_k)
    assert ids.dtype == owned.dtype == torch.int32
    assert weights.dtype == torch.float32
    assert all(t.is_contiguous() for t in (x, ids, weights, owned))
    _push_kernel[(num_rows, MAX_MEMBERS)](
        x.view(torch.int64),
        ids,
        weights.view(torch.int64),
        owned,
        exchange.addresses,
        exchange.control,
        layer,
        owned.shape[0],
        num_warps=4,
        **inbox_arguments(exchange),
        **overlap(x),
    )
