# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""All members' rows out of the inbox, and the lists of the experts that this member owns.

    owner[e] = |{e' < e : e' is active}| mod sharing,   active: an expert that any row chose

The decoding members and the lenders that take part share the experts. All see the same ids, so they
agree on every owner without a message; each owns as many active experts as the others, or one less.
An expert of another owner has an empty list here, so the expert kernels read no weight of it.

The launch waits for the rows itself: an expert's program for all ids, a row's program for that row,
and a lender's program for the row of padding that says that it has come as far. It takes the place
of ``engine.kernels.triton_plan.plan``.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from engine.kernels.triton_overlap import overlap, wait_for_inputs
from engine.spread.memory import WORD_BYTES, Exchange
from engine.spread.triton_push import MOST_THREADS, inbox_arguments, inbox_of
from engine.spread.triton_words import (
    FIRST_FLAG,
    MASK,
    NUM_DECODING,
    NUM_SHARING,
    PLACE,
    ROWS,
    TURN,
    abort,
    agreed,
    clock,
    deadline,
    load_words,
    member_address,
    note_wait,
    wait_state,
)
from transport.wire.spread import MAX_MEMBERS

WORD = tl.constexpr(WORD_BYTES)


@dataclass(frozen=True)
class Collected:
    """``x`` [rows, hidden] and ``weights`` float32 [rows, top_k], ``rows_each`` of every decoding
    member in the order of their places, undefined for padding and behind the last member's;
    ``lists`` and ``counts`` as of ``plan``, of the owned experts. ``owners`` int32 [experts]: of
    each active one the turn of its owner."""

    x: torch.Tensor
    weights: torch.Tensor
    lists: torch.Tensor
    counts: torch.Tensor
    owners: torch.Tensor
    rows_each: int


@triton.jit
def _load_ids(
    p_inbox,
    start,
    rows_each,
    num_rows,
    flag,
    TOP_K: tl.constexpr,
    ROW_BYTES: tl.constexpr,
    MEMBER_BYTES: tl.constexpr,
    BLOCK_T: tl.constexpr,
):
    """(ids [BLOCK_T, TOP_K], -1 for none, and 1 where a row's are valid [BLOCK_T]) of the rows from
    ``start`` on, which are counted over all members."""
    rows = start + tl.arange(0, BLOCK_T)
    held = tl.minimum(rows, num_rows - 1)
    o_row = (held // rows_each).to(tl.int64) * MEMBER_BYTES + (held % rows_each) * ROW_BYTES
    o_k = tl.arange(0, TOP_K)
    o_word = p_inbox + o_row[:, None] + (o_k // 4 * WORD)[None, :]
    b_words, b_valid = load_words(o_word, flag)
    b_ids = ((b_words >> (o_k % 4 * 16)[None, :].to(tl.int64)) & 0xFFFF).to(tl.int32)
    none = (b_ids == 0xFFFF) | (rows >= num_rows)[:, None]
    return tl.where(none, -1, b_ids), tl.min(b_valid, axis=1)


@triton.jit
def _own_list(
    p_lists, p_counts, p_owners, p_inbox, p_addresses, p_control, expert, rows_each, most_rows,
    flag, own, until,
    EXPERTS: tl.constexpr,
    BLOCK_E: tl.constexpr,
    TOP_K: tl.constexpr,
    ROW_BYTES: tl.constexpr,
    MEMBER_BYTES: tl.constexpr,
    BLOCK_T: tl.constexpr,
):  # fmt: skip
    turn = agreed(p_control, TURN)
    num_rows = rows_each * tl.load(p_control + NUM_DECODING).to(tl.int32)
    num_rows = tl.where(turn >= 0, num_rows, 0)
    o_e = tl.arange(0, BLOCK_E)
    b_chosen = tl.zeros((BLOCK_E,), tl.int32)
    given_up = 0
    for start in range(0, num_rows, BLOCK_T):
        b_ids, b_valid = _load_ids(
            p_inbox, start, rows_each, num_rows, flag, TOP_K, ROW_BYTES, MEMBER_BYTES, BLOCK_T
        )
        state = 1 - tl.min(b_valid, axis=0)
        while state == 1:
            b_ids, b_valid = _load_ids(
                p_inbox, start, rows_each, num_rows, flag, TOP_K, ROW_BYTES, MEMBER_BYTES, BLOCK_T
            )
            state = wait_state(b_valid, own, until)
        given_up |= state
        b_flat = tl.reshape(b_ids, (BLOCK_T * TOP_K,))
        b_chosen += tl.histogram(tl.maximum(b_flat, 0), BLOCK_E, mask=b_flat >= 0)
    if given_up != 0:
        abort(p_addresses, p_control, 1)
    active = (b_chosen > 0) & (o_e < EXPERTS)
    rank = tl.sum((active & (o_e < expert)).to(tl.int32), axis=0)
    count = tl.sum(tl.where(o_e == expert, b_chosen, 0), axis=0)
    owner = rank % agreed(p_control, NUM_SHARING)
    tl.store(p_owners + expert, owner.to(tl.int32))
    owned = (owner == turn) & (given_up == 0)
    count = tl.where(owned, count, 0)
    if count > 0:
        o_k = tl.arange(0, TOP_K)[None, :]
        p_list = p_lists + expert.to(tl.int64) * most_rows - 1
        for start in range(0, num_rows, BLOCK_T):
            b_ids, _ = _load_ids(
                p_inbox, start, rows_each, num_rows, flag, TOP_K, ROW_BYTES, MEMBER_BYTES, BLOCK_T
            )
            o_pair = (start + tl.arange(0, BLOCK_T))[:, None] * TOP_K + o_k
            b_pair = tl.max(tl.where(b_ids == expert, o_pair, -1), axis=1)
            hit = (b_pair >= 0).to(tl.int32)
            tl.store(p_list + tl.cumsum(hit, axis=0), b_pair, mask=hit == 1)
            p_list += tl.sum(hit, axis=0)
    tl.store(p_counts + expert, count)


@triton.jit
def _load_row(
    p_row,
    flag,
    ID_WORDS: tl.constexpr,
    WEIGHT_WORDS: tl.constexpr,
    X_WORDS: tl.constexpr,
    BLOCK_X: tl.constexpr,
):
    """(x, weights over and over, 1 where the row is padding, 1 where what is read is valid), each
    [BLOCK_X]: every thread looks at the ids itself."""
    o_x = tl.arange(0, BLOCK_X)
    b_ids, b_has_ids = load_words(p_row + o_x // BLOCK_X * WORD, flag)
    b_weights, b_has_weights = load_words(p_row + (ID_WORDS + o_x % WEIGHT_WORDS) * WORD, flag)
    p_x = p_row + (ID_WORDS + WEIGHT_WORDS + tl.minimum(o_x, X_WORDS - 1)) * WORD
    b_x, b_has_x = load_words(p_x, flag)
    b_padding = ((b_ids & 0xFFFF) == 0xFFFF).to(tl.int32)
    return b_x, b_weights, b_padding, b_has_ids & (b_padding | (b_has_weights & b_has_x))


@triton.jit
def _take_row(
    p_x, p_weights, p_inbox, p_addresses, p_control, row, rows_each, flag, own, until,
    ID_WORDS: tl.constexpr,
    WEIGHT_WORDS: tl.constexpr,
    X_WORDS: tl.constexpr,
    BLOCK_X: tl.constexpr,
    ROW_BYTES: tl.constexpr,
    MEMBER_BYTES: tl.constexpr,
):  # fmt: skip
    began = clock()
    member = row // rows_each
    p_row = p_inbox + member.to(tl.int64) * MEMBER_BYTES + (row % rows_each) * ROW_BYTES
    b_x, b_weights, b_padding, b_valid = _load_row(
        p_row, flag, ID_WORDS, WEIGHT_WORDS, X_WORDS, BLOCK_X
    )
    state = 1 - tl.min(b_valid, axis=0)
    while state == 1:
        b_x, b_weights, b_padding, b_valid = _load_row(
            p_row, flag, ID_WORDS, WEIGHT_WORDS, X_WORDS, BLOCK_X
        )
        state = wait_state(b_valid, own, until)
    if row % rows_each == 0:
        note_wait(own, ROWS, member, began)
    if state == 3:
        abort(p_addresses, p_control, 2 + member)
    o_x, row = tl.arange(0, BLOCK_X), row.to(tl.int64)
    taken = (b_padding == 0) & (state == 0)
    p_weights += row * WEIGHT_WORDS + o_x
    tl.store(p_weights, b_weights, mask=taken & (o_x < WEIGHT_WORDS))
    tl.store(p_x + row * X_WORDS + o_x, b_x, mask=taken & (o_x < X_WORDS))


@triton.jit
def _wait_for_lender(
    p_inbox, p_addresses, p_control, member, flag, own, until,
    TOP_K: tl.constexpr,
    ROW_BYTES: tl.constexpr,
    MEMBER_BYTES: tl.constexpr,
    BLOCK_T: tl.constexpr,
):  # fmt: skip
    began = clock()
    p_from = p_inbox + member.to(tl.int64) * MEMBER_BYTES
    _, b_valid = _load_ids(p_from, 0, 1, 1, flag, TOP_K, ROW_BYTES, MEMBER_BYTES, BLOCK_T)
    state = 1 - tl.min(b_valid, axis=0)
    while state == 1:
        _, b_valid = _load_ids(p_from, 0, 1, 1, flag, TOP_K, ROW_BYTES, MEMBER_BYTES, BLOCK_T)
        state = wait_state(b_valid, own, until)
    note_wait(own, ROWS, member, began)
    if state == 3:
        abort(p_addresses, p_control, 2 + member)


@triton.jit(do_not_specialize=["layer", "rows_each", "most_rows"])
def _collect_kernel(
    p_x,
    p_weights,
    p_lists,
    p_counts,
    p_owners,
    p_addresses,
    p_control,
    layer,
    rows_each,
    most_rows,
    EXPERTS: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_T: tl.constexpr,
    TOP_K: tl.constexpr,
    ID_WORDS: tl.constexpr,
    WEIGHT_WORDS: tl.constexpr,
    X_WORDS: tl.constexpr,
    BLOCK_X: tl.constexpr,
    ROW_BYTES: tl.constexpr,
    MEMBER_BYTES: tl.constexpr,
    PDL: tl.constexpr,
):
    """Programs of the first ``most_rows`` take a row each, those behind them do an expert each, and
    the last ones wait for a lender each."""
    program = tl.program_id(0)
    num_decoding = tl.load(p_control + NUM_DECODING)
    if (program < most_rows) & (program >= rows_each * num_decoding):
        return
    flag = (tl.load(p_control + FIRST_FLAG) + layer).to(tl.int32)
    place = tl.load(p_control + PLACE)
    own = member_address(p_addresses, place)
    p_inbox = inbox_of(own, flag, MEMBER_BYTES)
    wait_for_inputs(PDL)
    if program < most_rows:
        if agreed(p_control, TURN) < 0:
            return
        _take_row(
            p_x, p_weights, p_inbox, p_addresses, p_control, program, rows_each, flag, own,
            deadline(p_control, 1),
            ID_WORDS, WEIGHT_WORDS, X_WORDS, BLOCK_X, ROW_BYTES, MEMBER_BYTES,
        )  # fmt: skip
    elif program >= most_rows + EXPERTS:
        member = program - most_rows - EXPERTS
        if (place < num_decoding) & ((agreed(p_control, MASK) >> member) & 1 == 1):
            _wait_for_lender(
                p_inbox, p_addresses, p_control, member, flag, own, deadline(p_control, 1),
                TOP_K, ROW_BYTES, MEMBER_BYTES, BLOCK_T,
            )  # fmt: skip
    else:
        # Of what does not come a row's program is to tell first: it knows the member.
        _own_list(
            p_lists, p_counts, p_owners, p_inbox, p_addresses, p_control, program - most_rows,
            rows_each, most_rows, flag, own, deadline(p_control, 2),
            EXPERTS, BLOCK_E, TOP_K, ROW_BYTES, MEMBER_BYTES, BLOCK_T,
        )  # fmt: skip


def collect(
    exchange: Exchange,
    most_members: int,
    rows_each: int,
    num_experts: int,
    layer: int,
    dtype: torch.dtype,
) -> Collected:
    """What the decoding members have pushed for the layer ``layer``: ``rows_each`` rows each.
    There are at most ``most_members``; programs of the rows of more end at once."""
    layout, device = exchange.layout, exchange.control.device
    num_rows = most_members * rows_each
    assert dtype.itemsize == layout.itemsize
    assert num_experts < 0xFFFF, "an id has 16 bits"
    least = max(16, MOST_THREADS // layout.top_k)
    found = Collected(
        torch.empty((num_rows, layout.hidden), dtype=dtype, device=device),
        torch.empty((num_rows, layout.top_k), dtype=torch.float32, device=device),
        torch.empty((num_experts, num_rows), dtype=torch.int32, device=device),
        torch.empty((num_experts,), dtype=torch.int32, device=device),
        torch.empty((num_experts,), dtype=torch.int32, device=device),
        rows_each,
    )
    _collect_kernel[(num_rows + num_experts + MAX_MEMBERS,)](
        found.x.view(torch.int64),
        found.weights.view(torch.int64),
        found.lists,
        found.counts,
        found.owners,
        exchange.addresses,
        exchange.control,
        layer,
        rows_each,
        num_rows,
        EXPERTS=num_experts,
        BLOCK_E=triton.next_power_of_2(num_experts),
        BLOCK_T=next((n for n in (least, 64) if num_rows <= n), 256),
        num_warps=4 if num_rows <= 64 else 8,
        **inbox_arguments(exchange),
        **overlap(exchange.control),
    )
    return found
