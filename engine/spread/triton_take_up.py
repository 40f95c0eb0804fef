# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""A member's rows with the experts' results added, and their RMS norm: ``add_rms_norm`` of what
other members return.

The results are added in the order of the local step, the shared expert's last. Waiting and adding
are one loop: a sum in which a value is missing is formed again. Each value read is then emptied for
the next layer.

Reference: torch_norm.rms_norm of the sum, through ``add_rms_norm``; test:
tests/kernels/spread/test_spread.py.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from engine.kernels.triton_overlap import LOADS_FIRST, overlap, wait_for_inputs
from engine.spread.memory import EMPTY, Exchange
from engine.spread.triton_push import MOST_THREADS
from engine.spread.triton_words import (
    MASK,
    MOST_MEMBERS,
    NUM_DECODING,
    PLACE,
    RESULTS,
    abort,
    agreed,
    clock,
    deadline,
    float_pointers,
    member_address,
    missing_state,
    note_wait,
)

MISSING = tl.constexpr(EMPTY)


@dataclass(frozen=True)
class Returned:
    """What the members return for the rows whose ``live`` (integers [rows] on the device) is not
    negative; the others are padding. ``ids`` int32 [rows, top_k] are the rows' experts, whose
    ``owners`` are as of ``Collected``."""

    exchange: Exchange
    live: torch.Tensor
    ids: torch.Tensor
    owners: torch.Tensor


@triton.jit
def _sum_returned(p_returned, mask, DIM: tl.constexpr, SLOTS: tl.constexpr):
    """(the sum [BLOCK], 0 where no value of it is missing, else SLOTS less the slot of the first
    one int32)."""
    b_bits = tl.load(p_returned, mask=mask, other=0, volatile=True)
    b_missing = (b_bits == MISSING).to(tl.int32) * SLOTS
    b_sum = b_bits.to(tl.float32, bitcast=True)
    for slot in tl.static_range(1, SLOTS):
        b_bits = tl.load(p_returned + slot * DIM, mask=mask, other=0, volatile=True)
        b_missing = tl.maximum(b_missing, (b_bits == MISSING).to(tl.int32) * (SLOTS - slot))
        b_sum += b_bits.to(tl.float32, bitcast=True)
    return b_sum, b_missing


@triton.jit
def _member_of(p_control, turn):
    """Who has this turn among those that share the experts: behind the decoding members come the
    lenders that take part."""
    num_decoding = tl.load(p_control + NUM_DECODING).to(tl.int32)
    o_member = tl.arange(0, MOST_MEMBERS)
    b_lends = ((agreed(p_control, MASK) >> o_member) & 1).to(tl.int32)
    b_turn = num_decoding + tl.cumsum(b_lends, axis=0) - 1
    lender = tl.sum(tl.where((b_lends == 1) & (b_turn == turn), o_member, 0), axis=0)
    return tl.where(turn < num_decoding, turn, lender)


@triton.jit
def _take_up_kernel(
    p_hidden,
    p_weight,
    p_x,
    p_live,
    p_ids,
    p_owners,
    p_addresses,
    p_control,
    eps,
    RETURNED: tl.constexpr,
    SLOTS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    dims = tl.arange(0, BLOCK)
    mask = dims < DIM
    b_weight = tl.load(p_weight + dims, mask=mask, other=0.0)
    own = member_address(p_addresses, tl.load(p_control + PLACE))
    p_returned = float_pointers(own + RETURNED)
    p_returned = p_returned.to(tl.pointer_type(tl.int32)) + token * (SLOTS * DIM) + dims
    wait_for_inputs(PDL)
    until = deadline(p_control, 1)
    b_hidden = tl.load(p_hidden + token * DIM + dims, mask=mask, other=0.0)
    if tl.load(p_live + token) >= 0:
        began = clock()
        b_sum, b_missing = _sum_returned(p_returned, mask, DIM, SLOTS)
        last = tl.max(b_missing, axis=0)
        state = (last != 0).to(tl.int32)
        while state == 1:
            b_sum, b_missing = _sum_returned(p_returned, mask, DIM, SLOTS)
            state, missing = missing_state(b_missing, own, until)
            last = tl.where(missing != 0, missing, last)
        if (token == 0) & (last > 1):
            # Of the results that came last; that of the shared expert is the member's own.
            turn = tl.load(p_owners + tl.load(p_ids + SLOTS - last))
            note_wait(own, RESULTS, _member_of(p_control, turn), began)
        if state == 3:
            abort(p_addresses, p_control, 1)
        b_hidden = (b_hidden.to(tl.float32) + b_sum).to(p_hidden.dtype.element_ty)
        tl.store(p_hidden + token * DIM + dims, b_hidden, mask=mask)
        for slot in tl.static_range(SLOTS):
            tl.store(p_returned + slot * DIM, tl.full((BLOCK,), MISSING, tl.int32), mask=mask)
    b_x = b_hidden.to(tl.float32)
    b_scale = tl.rsqrt(tl.sum(b_x * b_x, axis=0) / DIM + eps)
    tl.store(
        p_x + token * DIM + dims, (b_x * b_scale * b_weight).to(p_x.dtype.element_ty), mask=mask
    )


def take_up(
    hidden: torch.Tensor, returned: Returned, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(``hidden`` with the results added in place, its norm), both [rows, hidden].

    weight [hidden] float32, already ``1 + w``.
    """
    num_rows, dim = hidden.shape
    layout = returned.exchange.layout
    assert returned.live.shape == (num_rows,)
    assert returned.live.is_contiguous()
    assert returned.ids.shape == (num_rows, layout.top_k)
    assert returned.ids.is_contiguous()
    assert layout.top_k < 255
    assert dim == layout.hidden
    assert hidden.is_contiguous()
    assert weight.shape == (dim,)
    assert weight.dtype == torch.float32
    x = torch.empty_like(hidden)
    _take_up_kernel[(num_rows,)](
        hidden,
        weight,
        x,
        returned.live,
        returned.ids,
        returned.owners,
        returned.exchange.addresses,
        returned.exchange.control,
        eps,
        RETURNED=layout.returned,
        SLOTS=layout.top_k + 1,
        DIM=dim,
        BLOCK=max(triton.next_power_of_2(dim), MOST_THREADS),
        num_warps=8,
        **LOADS_FIRST,
        **overlap(hidden),
    )
    return hidden, x
