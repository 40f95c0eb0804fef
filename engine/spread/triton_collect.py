# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""All members' rows out of the inbox, and the lists of the experts that this member owns.

    rank[e] = |{e' < e : e' is active}|,   active: an expert that any row chose
    owner[e] = rank[e] mod sharing,   list[e] = rank[e] // sharing among the owner's lists

The decoding members and the lenders that take part share the experts. All see the same ids, so they
agree on every owner without a message; each owns as many active experts as the others, or one less.
A member's lists follow one another without gaps, so the expert kernels launch few programs that
have nothing to do.

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
from engine.spread.shapes import least_members
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
    member in the order of their places, undefined for padding and behind the last member's. List i
    of the owned experts is that of the expert ``experts[i]`` int32 [lists]: ``lists`` int32 [lists,
    rows] and ``counts`` int32 [lists] as of ``plan``. ``owners`` int32 [experts]: of each active
    one the turn of its owner."""

    x: torch.Tensor
    weights: torch.Tensor
    lists: torch.Tensor
    counts: torch.Tensor
    experts: torch.Tensor
    owners: torch.Tensor
    rows_each: int

    @classmethod
    def empty(
        cls, exchange: Exchange, most_members: int, rows_each: int, num_experts: int,
        dtype: torch.dtype,
    ) -> "Collected":  # fmt: skip
        """Memory for one layer of a group whose graphs are for at most ``most_members`` decoding
        members, with ``rows_each`` rows each."""
        layout, device = exchange.layout, exchange.control.device
        num_rows = most_members * rows_each
        num_lists = -(-num_experts // least_members(most_members))
        assert dtype.itemsize == layout.itemsize
        assert num_experts < 0xFFFF, "an id has 16 bits"
        return cls(
            torch.empty((num_rows, layout.hidden), dtype=dtype, device=device),
            torch.empty((num_rows, layout.top_k), dtype=torch.float32, device=device),
            torch.empty((num_lists, num_rows), dtype=torch.int32, device=device),
            torch.empty((num_lists,), dtype=torch.int32, device=device),
            torch.empty((num_lists,), dtype=torch.int32, device=device),
            torch.empty((num_experts,), dtype=torch.int32, device=device),
            rows_each,
        )


@triton.jit
def _load_ids(
    p_inbox,
    start,
    rows_each,
    num_rows,
    flag,
    TOP_K: tl.constexpr,
    ID_WORDS: tl.constexpr,
    MEMBER_BYTES: tl.constexpr,
    BLOCK_T: tl.constexpr,
):
    """(ids [BLOCK_T, TOP_K], -1 for none, and 1 where a row's are valid [BLOCK_T]) of the rows from
    ``start`` on, which are counted over all members."""
    rows = start + tl.arange(0, BLOCK_T)
    held = tl.minimum(rows, num_rows - 1)
    o_row = (held // rows_each).to(tl.int64) * MEMBER_BYTES + (held % rows_each) * (ID_WORDS * WORD)
    o_k = tl.arange(0, TOP_K)
    o_word = p_inbox + o_row[:, None] + (o_k // 4 * WORD)[None, :]
    b_words, b_valid = load_words(o_word, flag)
    b_ids = ((b_words >> (o_k % 4 * 16)[None, :].to(tl.int64)) & 0xFFFF).to(tl.int32)
    none = (b_ids == 0xFFFF) | (rows >= num_rows)[:, None]
    return tl.where(none, -1, b_ids), tl.min(b_valid, axis=1)


@triton.jit
def _own_list(
    p_lists, p_counts, p_experts, p_owners, p_inbox, p_addresses, p_control, expert, rows_each,
    most_rows, flag, own, until,
    EXPERTS: tl.constexpr,
    BLOCK_E: tl.constexpr,
    TOP_K: tl.constexpr,
    ID_WORDS: tl.constexpr,
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
            p_inbox, start, rows_each, num_rows, flag, TOP_K, ID_WORDS, MEMBER_BYTES, BLOCK_T
        )
        state = 1 - tl.min(b_valid, axis=0)
        while state == 1:
            b_ids, b_valid = _load_ids(
                p_inbox, start, rows_each, num_rows, flag, TOP_K, ID_WORDS, MEMBER_BYTES, BLOCK_T
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
    sharing = agreed(p_control, NUM_SHARING).to(tl.int32)
    owner = rank % sharing
    tl.store(p_owners + expert, owner)
    if (owner == turn) & (given_up == 0) & (count > 0):
        o_k = tl.arange(0, TOP_K)[None, :]
        place = rank // sharing
        p_list = p_lists + place.to(tl.int64) * most_rows - 1
        for start in range(0, num_rows, BLOCK_T):
            b_ids, _ = _load_ids(
                p_inbox, start, rows_each, num_rows, flag, TOP_K, ID_WORDS, MEMBER_BYTES, BLOCK_T
            )
            o_pair = (start + tl.arange(0, BLOCK_T))[:, None] * TOP_K + o_k
            b_pair = tl.max(tl.where(b_ids == expert, o_pair, -1), axis=1)
            hit = (b_pair >= 0).to(tl.int32)
            tl.store(p_list + tl.cumsum(hit, axis=0), b_pair, mask=hit == 1)
            p_list += tl.sum(hit, axis=0)
        tl.store(p_experts + place, expert)
        tl.store(p_counts + place, count)


@triton.jit
def _load_row(
    p_member,
    row,
    flag,
    ID_WORDS: tl.constexpr,
    WEIGHT_WORDS: tl.constexpr,
    X_WORDS: tl.constexpr,
    BLOCK_X: tl.constexpr,
    WEIGHTS_OFFSET: tl.constexpr,
    X_OFFSET: tl.constexpr,
):
    """(x, weights over and over, 1 where the row is padding, 1 where what is read is valid), each
    [BLOCK_X]: every thread looks at the ids itself."""
    o_x = tl.arange(0, BLOCK_X)
    p_ids = p_member + row * (ID_WORDS * WORD)
    p_weights = p_member + WEIGHTS_OFFSET + row * (WEIGHT_WORDS * WORD)
    p_x = p_member + X_OFFSET + row * (X_WORDS * WORD)
    b_ids, b_has_ids = load_words(p_ids + o_x // BLOCK_X * WORD, flag)
    b_weights, b_has_weights = load_words(p_weights + o_x % WEIGHT_WORDS * WORD, flag)
    b_x, b_has_x = load_words(p_x + tl.minimum(o_x, X_WORDS - 1) * WORD, flag)
    b_padding = ((b_ids & 0xFFFF) == 0xFFFF).to(tl.int32)
    return b_x, b_weights, b_padding, b_has_ids & (b_padding | (b_has_weights & b_has_x))


@triton.jit
def _take_row(
    p_x, p_weights, p_inbox, p_addresses, p_control, row, rows_each, flag, own, until,
    ID_WORDS: tl.constexpr,
    WEIGHT_WORDS: tl.constexpr,
    X_WORDS: tl.constexpr,
    BLOCK_X: tl.constexpr,
    WEIGHTS_OFFSET: tl.constexpr,
    X_OFFSET: tl.constexpr,
    MEMBER_BYTES: tl.constexpr,
):  # fmt: skip
    began = clock()
    member = row // rows_each
    p_member = p_inbox + member.to(tl.int64) * MEMBER_BYTES
    b_x, b_weights, b_padding, b_valid = _load_row(
        p_member, row % rows_each, flag,
        ID_WORDS, WEIGHT_WORDS, X_WORDS, BLOCK_X, WEIGHTS_OFFSET, X_OFFSET,
    )  # fmt: skip
    state = 1 - tl.min(b_valid, axis=0)
    while state == 1:
        b_x, b_weights, b_padding, b_valid = _load_row(
            p_member, row % rows_each, flag,
            ID_WORDS, WEIGHT_WORDS, X_WORDS, BLOCK_X, WEIGHTS_OFFSET, X_OFFSET,
        )  # fmt: skip
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
    ID_WORDS: tl.constexpr,
    MEMBER_BYTES: tl.constexpr,
    BLOCK_T: tl.constexpr,
):  # fmt: skip
    began = clock()
    p_from = p_inbox + member.to(tl.int64) * MEMBER_BYTES
    _, b_valid = _load_ids(p_from, 0, 1, 1, flag, TOP_K, ID_WORDS, MEMBER_BYTES, BLOCK_T)
    state = 1 - tl.min(b_valid, axis=0)
    while state == 1:
        _, b_valid = _load_ids(p_from, 0, 1, 1, flag, TOP_K, ID_WORDS, MEMBER_BYTES, BLOCK_T)
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
    p_experts,
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
    WEIGHTS_OFFSET: tl.constexpr,
    X_OFFSET: tl.constexpr,
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
            ID_WORDS, WEIGHT_WORDS, X_WORDS, BLOCK_X, WEIGHTS_OFFSET, X_OFFSET, MEMBER_BYTES,
        )  # fmt: skip
    elif program >= most_rows + EXPERTS:
        member = program - most_rows - EXPERTS
        if (place < num_decoding) & ((agreed(p_control, MASK) >> member) & 1 == 1):
            _wait_for_lender(
                p_inbox, p_addresses, p_control, member, flag, own, deadline(p_control, 1),
                TOP_K, ID_WORDS, MEMBER_BYTES, BLOCK_T,
            )  # fmt: skip
    else:
        # Of what does not come a row's program is to tell first: it knows the member.
        _own_list(
            p_lists, p_counts, p_experts, p_owners, p_inbox, p_addresses, p_control,
            program - most_rows, rows_each, most_rows, flag, own, deadline(p_control, 2),
            EXPERTS, BLOCK_E, TOP_K, ID_WORDS, MEMBER_BYTES, BLOCK_T,
        )  # fmt: skip


def collect(rows: Collected, exchange: Exchange, layer: int) -> None:
    """Fill ``rows`` with what the decoding members have pushed for the layer ``layer``, as many
    rows each; ``push`` has set its counts to 0."""
    layout = exchange.layout
    num_rows, num_experts = rows.x.shape[0], rows.owners.shape[0]
    assert rows.x.shape == (num_rows, layout.hidden)
    assert rows.weights.shape == (num_rows, layout.top_k)
    assert rows.lists.shape == (rows.counts.shape[0], num_rows)
    assert rows.experts.shape == rows.counts.shape
    least = max(16, MOST_THREADS // layout.top_k)
    _collect_kernel[(num_rows + num_experts + MAX_MEMBERS,)](
        rows.x.view(torch.int64),
        rows.weights.view(torch.int64),
        rows.lists,
        rows.counts,
        rows.experts,
        rows.owners,
        exchange.addresses,
        exchange.control,
        layer,
        rows.rows_each,
        num_rows,
        EXPERTS=num_experts,
        BLOCK_E=triton.next_power_of_2(num_experts),
        BLOCK_T=next((n for n in (least, 64) if num_rows <= n), 256),
        num_warps=4 if num_rows <= 64 else 8,
        **inbox_arguments(exchange),
        **overlap(exchange.control),
    )
