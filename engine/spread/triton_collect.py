# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""All members' rows out of the inbox, and the lists of the experts that this member owns.

    lists[e] = [r * top_k + j : ids[r, j] = e],   as of ``plan``
    rank[e] = |{e' < e : lists[e'] is not empty}|,   owner[e] = rank[e] mod sharing

The decoding members and the lenders that take part share the experts. All see the same ids, so they
agree on every owner without a message; each owns as many active experts as the others, or one less.
An expert's program finds its rank itself, among all ids, so that the owned experts lie together and
a program of an expert kernel reads one number.

The launch waits for the rows itself: an expert's program for all ids, a row's program for that row,
and a lender's program for the row of padding that says that it has come as far. It takes the place
of ``engine.kernels.experts.triton_plan.plan``.

Reference: the formulas above; test: tests/kernels/test_shared_functions.py, test_spread_orders.py.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from engine.kernels.triton_overlap import overlap, wait_for_inputs
from engine.spread.memory import WORD_BYTES, Exchange
from engine.spread.shapes import least_members
from engine.spread.triton_push import inbox_arguments, inbox_of
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
    member in the order of their places, undefined for padding and behind the last member's.
    ``lists`` int32 [experts, rows] as of ``plan``. ``owned`` int32 [most that a member can own]:
    ``count * 65536 + expert`` of each active expert that this member owns, then zeros. ``owners``
    int32 [experts]: of each active expert the turn of its owner."""

    x: torch.Tensor
    weights: torch.Tensor
    lists: torch.Tensor
    owned: torch.Tensor
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
        most_owned = triton.cdiv(num_experts, least_members(most_members))
        assert dtype.itemsize == layout.itemsize
        assert num_experts < 0xFFFF, "an id has 16 bits"
        assert num_rows < 1 << 15, "so has a count of an owned expert, and its sign"
        return cls(
            torch.empty((num_rows, layout.hidden), dtype=dtype, device=device),
            torch.empty((num_rows, layout.top_k), dtype=torch.float32, device=device),
            torch.empty((num_experts, num_rows), dtype=torch.int32, device=device),
            torch.empty((most_owned,), dtype=torch.int32, device=device),
            torch.empty((num_experts,), dtype=torch.int32, device=device),
            rows_each,
        )


@triton.jit
def owned_expert(p_owned, place):
    """(the expert at ``place`` among those that this member owns, how many rows chose it: 0 where
    it owns fewer)."""
    owned = tl.load(p_owned + place)
    return owned & 0xFFFF, owned >> 16


@triton.jit
def _either(a, b):
    return a | b


@triton.jit
def chosen_experts(b_words, BLOCK_E: tl.constexpr):
    """Bit e % 32 of element e // 32 [BLOCK_E // 32] is set where any of the words of four ids has
    the id e."""
    b_flat = tl.reshape(b_words, (b_words.numel, 1), can_reorder=True)
    o_mask = tl.arange(0, BLOCK_E // 32)[None, :]
    b_bits = tl.zeros((b_words.numel, BLOCK_E // 32), tl.int32)
    for i in tl.static_range(4):
        b_id = ((b_flat >> (16 * i)) & 0xFFFF).to(tl.int32)
        b_bits |= tl.where((b_id >> 5) == o_mask, 1 << (b_id & 31), 0)
    return tl.reduce(b_bits, 0, _either)


@triton.jit
def num_below(b_chosen, expert, BLOCK_E: tl.constexpr):
    """How many experts below ``expert`` are chosen."""
    o_mask = tl.arange(0, BLOCK_E // 32)
    b_below = tl.where(o_mask < expert // 32, -1, 0)
    b_below = tl.where(o_mask == expert // 32, (1 << (expert % 32)) - 1, b_below)
    # The set bits of each word: counted by twos, fours and eights, whose counts are then added.
    b_bits = (b_chosen & b_below).to(tl.uint32, bitcast=True)
    b_bits = b_bits - ((b_bits >> 1) & 0x55555555)
    b_bits = (b_bits & 0x33333333) + ((b_bits >> 2) & 0x33333333)
    b_bits = (b_bits + (b_bits >> 4)) & 0x0F0F0F0F
    return tl.sum(((b_bits * 0x01010101) >> 24).to(tl.int32), axis=0)


@triton.jit
def _load_ids(
    p_inbox,
    start,
    rows_each,
    num_rows,
    flag,
    ID_WORDS: tl.constexpr,
    MEMBER_BYTES: tl.constexpr,
    BLOCK_T: tl.constexpr,
):
    """(words of four ids [BLOCK_T, ID_WORDS], 1 where they are valid) of the rows from ``start``
    on, which are counted over all members."""
    rows = start + tl.arange(0, BLOCK_T)
    held = tl.minimum(rows, num_rows - 1)
    o_row = (held // rows_each).to(tl.int64) * MEMBER_BYTES + (held % rows_each) * (ID_WORDS * WORD)
    return load_words(
        p_inbox + o_row[:, None] + (tl.arange(0, ID_WORDS) * WORD)[None, :], flag
    )  # fmt: skip


@triton.jit
def _list_rows(
    p_lists, p_owned, p_owners, p_inbox, p_addresses, p_control, expert, rows_each, most_rows,
    flag, own, until,
    BLOCK_E: tl.constexpr,
    TOP_K: tl.constexpr,
    ID_WORDS: tl.constexpr,
    MEMBER_BYTES: tl.constexpr,
    BLOCK_T: tl.constexpr,
):  # fmt: skip
    num_rows = rows_each * tl.load(p_control + NUM_DECODING).to(tl.int32)
    turn = agreed(p_control, TURN).to(tl.int32)
    num_rows = tl.where(turn >= 0, num_rows, 0)
    b_chosen = tl.zeros((BLOCK_E // 32,), tl.int32)
    count = 0
    given_up = 0
    for start in range(0, num_rows, BLOCK_T):
        b_words, b_valid = _load_ids(
            p_inbox, start, rows_each, num_rows, flag, ID_WORDS, MEMBER_BYTES, BLOCK_T
        )
        state = 1 - tl.min(tl.min(b_valid, axis=1), axis=0)
        while state == 1:
            b_words, b_valid = _load_ids(
                p_inbox, start, rows_each, num_rows, flag, ID_WORDS, MEMBER_BYTES, BLOCK_T
            )
            state = wait_state(tl.min(b_valid, axis=1), own, until)
        given_up |= state
        b_chosen |= chosen_experts(b_words, BLOCK_E)
        rows = start + tl.arange(0, BLOCK_T)
        o_pair = rows[:, None] * TOP_K + tl.arange(0, ID_WORDS)[None, :] * 4
        b_pairs = tl.full((BLOCK_T, ID_WORDS), -1, tl.int32)
        for i in tl.static_range(4):
            b_id = ((b_words >> (16 * i)) & 0xFFFF).to(tl.int32)
            b_pairs = tl.where(b_id == expert, o_pair + i, b_pairs)
        b_pair = tl.where(rows < num_rows, tl.max(b_pairs, axis=1), -1)
        hit = (b_pair >= 0).to(tl.int32)
        p_list = p_lists + expert.to(tl.int64) * most_rows + count - 1
        tl.store(p_list + tl.cumsum(hit, axis=0), b_pair, mask=hit == 1)
        count += tl.sum(hit, axis=0)
    if given_up != 0:
        abort(p_addresses, p_control, 1)
    rank = num_below(b_chosen, expert, BLOCK_E)
    sharing = agreed(p_control, NUM_SHARING).to(tl.int32)
    tl.store(p_owners + expert, rank % sharing)
    is_owned = (rank % sharing == turn) & (count > 0) & (given_up == 0)
    tl.store(p_owned + rank // sharing, count * 65536 + expert, mask=is_owned)


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
    ID_WORDS: tl.constexpr,
    MEMBER_BYTES: tl.constexpr,
    BLOCK_T: tl.constexpr,
):  # fmt: skip
    began = clock()
    p_from = p_inbox + member.to(tl.int64) * MEMBER_BYTES
    _, b_valid = _load_ids(p_from, 0, 1, 1, flag, ID_WORDS, MEMBER_BYTES, BLOCK_T)
    state = 1 - tl.min(tl.min(b_valid, axis=1), axis=0)
    while state == 1:
        _, b_valid = _load_ids(p_from, 0, 1, 1, flag, ID_WORDS, MEMBER_BYTES, BLOCK_T)
        state = wait_state(tl.min(b_valid, axis=1), own, until)
    note_wait(own, ROWS, member, began)
    if state == 3:
        abort(p_addresses, p_control, 2 + member)


@triton.jit(do_not_specialize=["layer", "rows_each", "most_rows"])
def _collect_kernel(
    p_x,
    p_weights,
    p_lists,
    p_owned,
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
                ID_WORDS, MEMBER_BYTES, BLOCK_T,
            )  # fmt: skip
    else:
        # Of what does not come a row's program is to tell first: it knows the member.
        _list_rows(
            p_lists, p_owned, p_owners, p_inbox, p_addresses, p_control, program - most_rows,
            rows_each, most_rows, flag, own, deadline(p_control, 2),
            BLOCK_E, TOP_K, ID_WORDS, MEMBER_BYTES, BLOCK_T,
        )  # fmt: skip


def collect(rows: Collected, exchange: Exchange, layer: int) -> None:
    """Fill ``rows`` with what the decoding members have pushed for the layer ``layer``; the launch
    that pushed has set its ``owned`` to 0."""
    layout = exchange.layout
    num_rows, num_experts = rows.x.shape[0], rows.owners.shape[0]
    assert rows.x.shape == (num_rows, layout.hidden)
    assert rows.weights.shape == (num_rows, layout.top_k)
    assert rows.lists.shape == (num_experts, num_rows)
    # A reduction over threads makes them agree on the end of a wait: each has an element.
    block_t = next((n for n in (128, 256) if num_rows <= n), 512)
    _collect_kernel[(num_rows + num_experts + MAX_MEMBERS,)](
        rows.x.view(torch.int64),
        rows.weights.view(torch.int64),
        rows.lists,
        rows.owned,
        rows.owners,
        exchange.addresses,
        exchange.control,
        layer,
        rows.rows_each,
        num_rows,
        EXPERTS=num_experts,
        BLOCK_E=max(32, triton.next_power_of_2(num_experts)),
        BLOCK_T=block_t,
        num_warps=4 if num_rows <= 128 else 8,
        **inbox_arguments(exchange),
        **overlap(exchange.control),
    )
