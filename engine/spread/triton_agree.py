# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Which lenders take part in a step, agreed on by the members' devices where the step begins.

A lender has no rows, so the others need nothing of it but its share of the experts, and a step that
it does not come to is not late. It ``offer``s itself with a word to the first member. The first
member looks once which offers of this step have come, and tells all members, with a word of the
same protocol as rows have. All then share the experts out among the decoding members and these
lenders. A lender whose offer came too late learns it from the word, and runs the step through.

Reference: the local step (triton_experts.py), whose bits no lender changes; test:
tests/kernels/spread/test_lending.py, test_spread.py.
"""

import triton
import triton.language as tl

from engine.kernels.triton_overlap import overlap, wait_for_inputs
from engine.spread import memory
from engine.spread.memory import OFFERS, TAKING_PART, WAITED, WORD_BYTES, Exchange
from engine.spread.triton_words import (
    FIRST_FLAG,
    MASK,
    NUM_DECODING,
    NUM_LENDERS,
    NUM_SHARING,
    PLACE,
    ROWS,
    TURN,
    abort,
    clock,
    deadline,
    is_aborted,
    load_words,
    member_address,
    note_wait,
    store_words,
    wait_state,
)
from transport.wire.spread import MAX_MEMBERS

TOLD = tl.constexpr(TAKING_PART)
OFFERED = tl.constexpr(OFFERS)
WORD = tl.constexpr(WORD_BYTES)
USES = tl.constexpr(memory.MAX_USES)
NONE = tl.constexpr(memory.NO_FLAG)
THREADS = tl.constexpr(32)
LENDER_LIMITS = tl.constexpr(10)
"""Longest wait of a lender, in limits of a wait for rows: it may be a step ahead of the others."""
assert OFFERS + MAX_MEMBERS * WORD_BYTES <= WAITED


@triton.jit
def _offer_kernel(p_addresses, p_control, PDL: tl.constexpr):
    o_thread = tl.arange(0, THREADS)
    flag = tl.load(p_control + FIRST_FLAG).to(tl.int32)
    p_to = member_address(p_addresses, 0) + OFFERED + tl.load(p_control + PLACE) * WORD
    wait_for_inputs(PDL)
    store_words(p_to + o_thread * 0, (o_thread * 0).to(tl.int64), flag, o_thread == 0)


@triton.jit
def _look(p_word, flag):
    """(data, 1 where it is that of the step, 1 where it is that of a later one), of each thread."""
    b_data, b_valid = load_words(p_word, flag)
    b_there = tl.load((p_word + 4).to(tl.pointer_type(tl.int32)), volatile=True)
    b_later = (b_there > flag) & ((b_there ^ flag) < USES)
    return b_data, b_valid, b_later.to(tl.int32)


@triton.jit
def _agree_kernel(p_addresses, p_control, PDL: tl.constexpr):
    o_thread = tl.arange(0, THREADS)
    place = tl.load(p_control + PLACE).to(tl.int32)
    flag = tl.load(p_control + FIRST_FLAG).to(tl.int32)
    num_decoding = tl.load(p_control + NUM_DECODING).to(tl.int32)
    num_members = num_decoding + tl.load(p_control + NUM_LENDERS).to(tl.int32)
    own = member_address(p_addresses, place)
    wait_for_inputs(PDL)
    if num_members == num_decoding:
        return
    lends = place >= num_decoding
    mask = 0
    if place == 0:
        _, b_offered, _ = _look(own + OFFERED + o_thread % 8 * WORD, flag)
        is_lender = (o_thread >= num_decoding) & (o_thread < num_members)
        mask = tl.sum(tl.where(is_lender, b_offered << o_thread, 0), axis=0)
        in_group = o_thread < num_members
        p_to = tl.load(p_addresses + o_thread, mask=in_group, other=0) + TOLD
        told = in_group & (is_aborted(own) == 0)
        store_words(p_to, (o_thread * 0 + mask).to(tl.int64), flag, told)
    else:
        p_word = own + TOLD + (o_thread * 0).to(tl.int64)
        until = deadline(p_control, 2)
        if lends:
            until = deadline(p_control, LENDER_LIMITS)
        began = clock()
        b_mask, b_valid, b_later = _look(p_word, flag)
        state = 1 - tl.min(b_valid | b_later, axis=0)
        while state == 1:
            b_mask, b_valid, b_later = _look(p_word, flag)
            state = wait_state(b_valid | b_later, own, until)
        if place < num_decoding:  # a lender may be a step ahead
            note_wait(own, ROWS, 0, began)
        mask = tl.max(tl.where(b_valid == 1, b_mask, 0), axis=0).to(tl.int32)
        if state == 3:
            mask = 0
            if lends:
                # The first member must not count on what was offered.
                p_offer = member_address(p_addresses, 0) + OFFERED + place * WORD
                none = tl.full((), NONE, tl.int32)
                store_words(
                    p_offer + o_thread * 0, (o_thread * 0).to(tl.int64), none, o_thread == 0
                )
            else:
                abort(p_addresses, p_control, 2)
    b_taking_part = (mask >> o_thread) & 1
    turn = place
    if lends:
        before = tl.sum(tl.where(o_thread < place, b_taking_part, 0), axis=0)
        turn = tl.where((mask >> place) & 1 == 1, num_decoding + before, -1)
    tl.store(p_control + NUM_SHARING, num_decoding + tl.sum(b_taking_part, axis=0))
    tl.store(p_control + TURN, turn)
    tl.store(p_control + MASK, mask)


def offer(exchange: Exchange) -> None:
    """As a lender, tell the first member that this one is in the step."""
    _launch(_offer_kernel, exchange)


def agree(exchange: Exchange) -> None:
    """Write into ``exchange.control`` among how many the step's experts are shared out, which turn
    is the own one (-1: none), and which lenders take part."""
    _launch(_agree_kernel, exchange)


def _launch(kernel, exchange):
    kernel[(1,)](
        exchange.addresses, exchange.control, num_warps=1, **overlap(exchange.control)
    )  # fmt: skip
