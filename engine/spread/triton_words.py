# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Words in other GPUs' memory: 8 bytes of data and twice a flag, valid when both flags are right.

A 16-byte store may arrive as two halves, so each half has a flag. Neither a store nor a load may
be kept back, hence volatile. Waiting is bounded by the GPU's clock: a wait that runs out sets the
abort word of every member, and from then on no wait of this generation waits.

In Triton's interpreter nothing arrives while a kernel runs, so there a wait runs out at once.

Reference: words as engine/spread/memory.py describes them; test:
tests/kernels/spread/test_spread.py (words that arrive, are missing or are old),
test_spread_orders.py.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import globaltimer

from engine.kernels.triton_dot import INTERPRETED
from engine.spread import memory
from transport.wire.spread import MAX_MEMBERS

PLACE = tl.constexpr(memory.PLACE)
LIMIT = tl.constexpr(memory.LIMIT)
FIRST_FLAG = tl.constexpr(memory.FLAG)
NUM_DECODING = tl.constexpr(memory.NUM_DECODING)
NUM_LENDERS = tl.constexpr(memory.NUM_LENDERS)
NUM_SHARING = tl.constexpr(memory.NUM_SHARING)
TURN = tl.constexpr(memory.TURN)
MASK = tl.constexpr(memory.MASK)
WAITS = tl.constexpr(memory.WAITED // 4)
MOST_MEMBERS = tl.constexpr(MAX_MEMBERS)
ROWS, RESULTS = tl.constexpr(0), tl.constexpr(1)
"""What a member is waited for."""


@triton.jit
def member_address(p_addresses, member):
    """Where a member's memory begins, int64."""
    return tl.multiple_of(tl.load(p_addresses + member), 256)


@triton.jit
def agreed(p_control, place):
    """NUM_SHARING, TURN or MASK of the step. A launch writes them beside words that the next one
    reads before its end: volatile, so that no cache answers with what was there before."""
    return tl.load(p_control + place, volatile=True)


@triton.jit
def float_pointers(address):
    """``address`` (int64) as pointers, known to be aligned so that accesses are 16 bytes wide."""
    return tl.multiple_of(address.to(tl.pointer_type(tl.float32)), 16)


@triton.jit
def result_places(p_addresses, b_pair, rows_each, RETURNED: tl.constexpr, TOP_K: tl.constexpr):
    """(where the results of each pair's home begin, the place of the pair's result among them)."""
    b_row, b_slot = tl.maximum(b_pair, 0) // TOP_K, tl.maximum(b_pair, 0) % TOP_K
    p_home = float_pointers(member_address(p_addresses, b_row // rows_each) + RETURNED)
    return p_home, b_row % rows_each * (TOP_K + 1) + b_slot


@triton.jit
def store_words(address, data, flag, mask):
    """data int64 to the words at ``address`` (int64), where ``mask``."""
    if INTERPRETED:
        p = address.to(tl.pointer_type(tl.int32))
        tl.store(p, data.to(tl.int32), mask=mask)
        tl.store(p + 1, flag, mask=mask)
        tl.store(p + 2, (data >> 32).to(tl.int32), mask=mask)
        tl.store(p + 3, flag, mask=mask)
    else:
        tl.inline_asm_elementwise(
            """
            {
            .reg .pred stored;
            .reg .b32 low, high;
            setp.ne.s32 stored, $4, 0;
            mov.b64 {low, high}, $2;
            @stored st.volatile.global.v4.b32 [$1], {low, $3, high, $3};
            mov.u32 $0, 0;
            }
            """,
            "=r,l,l,r,r",
            [address, data, flag, mask.to(tl.int32)],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )


@triton.jit
def load_words(address, flag):
    """(data int64, 1 where it is valid int32) of the words at ``address`` (int64)."""
    if INTERPRETED:
        p = address.to(tl.pointer_type(tl.int32))
        low, high = tl.load(p).to(tl.int64) & 0xFFFFFFFF, tl.load(p + 2).to(tl.int64)
        data = (high << 32) | low
        valid = ((tl.load(p + 1) == flag) & (tl.load(p + 3) == flag)).to(tl.int32)
    else:
        data, valid = tl.inline_asm_elementwise(
            """
            {
            .reg .pred same;
            .reg .b32 low, high, first, second;
            ld.volatile.global.v4.b32 {low, first, high, second}, [$2];
            mov.b64 $0, {low, high};
            setp.eq.s32 same, first, $3;
            setp.eq.and.s32 same, second, $3, same;
            selp.s32 $1, 1, 0, same;
            }
            """,
            "=l,=r,l,r",
            [address, flag],
            dtype=(tl.int64, tl.int32),
            is_pure=False,
            pack=1,
        )
    return data, valid


@triton.jit
def deadline(p_control, LIMITS: tl.constexpr):
    """When a wait that begins now has lasted ``LIMITS`` times the limit."""
    limit = tl.load(p_control + LIMIT) * LIMITS
    if INTERPRETED:
        return limit
    else:  # noqa: RET505 - what a constant turns down is compiled if nothing encloses it
        return globaltimer() + limit


@triton.jit
def clock():
    """The GPU's, in ns; the interpreter has none."""
    if INTERPRETED:
        return tl.full((), 0, tl.int64)
    else:  # noqa: RET505 - what a constant turns down is compiled if nothing encloses it
        return globaltimer()


@triton.jit
def note_wait(own, what, member, began):
    """Count, in the own memory, a wait for ROWS or RESULTS of a member from ``began`` to now; in
    the interpreter it is 1 ns. Programs that run at the same time count different ones."""
    waited = tl.full((), 1, tl.int32)
    if not INTERPRETED:
        waited = (globaltimer() - began).to(tl.int32)
    p_waited = own.to(tl.pointer_type(tl.int32)) + WAITS + what * MOST_MEMBERS + member
    tl.store(p_waited, tl.load(p_waited, volatile=True) + waited)


@triton.jit
def is_aborted(address):
    """1 if the generation's steps are no longer valid, by a member's memory at ``address``.

    NOTE: threads of a program may find different answers. Nothing that holds a barrier may depend
    on one.
    """
    return (tl.load(address.to(tl.pointer_type(tl.int32)), volatile=True) != 0).to(tl.int32)


@triton.jit
def wait_state(b_valid, own, until):
    """State of a wait for all of ``b_valid`` (int32, at least one element per thread): 0 over, 1
    going on, 3 given up because the generation is aborted or the wait has run out."""
    # Threads read the clock and the abort word at different times; the reduction makes them agree.
    return tl.max(tl.where(b_valid == 0, _is_over(own, until), 0), axis=0)


@triton.jit
def _is_over(own, until):
    if INTERPRETED:
        return tl.full((), 3, tl.int32)
    else:  # noqa: RET505 - what a constant turns down is compiled if nothing encloses it
        return tl.where(globaltimer() > until, 3, 1) | (is_aborted(own) * 2)


@triton.jit
def missing_state(b_missing, own, until):
    """(``wait_state`` of a wait for all of ``b_missing`` (int32, below 256) to be 0, one of those
    that are not)."""
    found = tl.max(tl.where(b_missing != 0, (_is_over(own, until) << 8) | b_missing, 0), axis=0)
    return found >> 8, found & 0xFF


@triton.jit
def abort(p_addresses, p_control, reason):
    """Tell all members that a wait was given up for ``reason``, as engine.spread.memory counts
    them, unless the generation is aborted already."""
    own = member_address(p_addresses, tl.load(p_control + PLACE))
    if is_aborted(own) == 0:
        if reason > 1:
            tl.store(own.to(tl.pointer_type(tl.int32)) + reason - 1, 1)
        num_members = tl.load(p_control + NUM_DECODING) + tl.load(p_control + NUM_LENDERS)
        for member in range(num_members):
            p_abort = member_address(p_addresses, member).to(tl.pointer_type(tl.int32))
            tl.store(p_abort, reason)
