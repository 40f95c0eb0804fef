# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Down of experts in FP8 on Hopper, by warps that each do one part of the work.

    y[p] = p[p] * down_e h[p],   pair p = (t, j), e = ids[p]

A program has 256 rows of each expert's weights, and an equal share of the tiles of 64 pairs, which
are in the order of experts. It holds the weights in shared memory while the tiles of their expert
pass by. One group of warps has the copy engine fetch both. Two groups of four warps multiply a tile
each in turn, so that the tensor cores work for one while the other stores its results. Each has a
ring of its own, whose slots are ``full`` when 128 columns of h have arrived and ``free`` when they
have been multiplied. Likewise for each 128 columns of the weights, which both groups free.

Programs next to each other have the same tiles and other rows, so the L2 cache holds their h.

Sums are scaled as in ``gluon_gate_up``.

Reference: triton_experts_fp8; test: tests/kernels/experts/test_hopper_experts.py,
tests/gpu/test_fp8.py.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from engine.kernels.experts.gluon_gate_up import BAND, FETCHERS, PAIRS, num_needed, tile_in_list
from engine.kernels.triton_overlap import wait_for_inputs

GROUPS = gl.constexpr(2)
SLOTS = gl.constexpr(5)
"""Slots of a group's ring."""
ROWS = gl.constexpr(2 * BAND.value)
"""Rows of the weights that a program holds."""


@gluon.jit
def _share(plan, BANDS: gl.constexpr):
    """The first tile of this program's share, and the one behind its last. Programs whose numbers
    differ by less than BANDS have the same tiles, and other rows of the weights."""
    num_tiles = num_needed(plan)
    share, shares = gl.program_id(0) // BANDS, gl.num_programs(0) // BANDS
    return share * num_tiles // shares, (share + 1) * num_tiles // shares


@gluon.jit
def _tile(plan, tile, first, last):
    """``tile_in_list`` without the place; whether it is the first of this program's tiles of the
    expert, and their number from this one on."""
    expert, start, row, p_list, count = tile_in_list(plan, tile)
    is_new = (tile == first) | (start == 0)
    return expert, row, p_list, count, is_new, gl.minimum(gl.cdiv(count, PAIRS), last - tile)


@gluon.jit
def _fetch(
    rings,
    plan,
    h_desc,
    w_desc,
    HIDDEN: gl.constexpr,
    DIM: gl.constexpr,
):
    h_ring, h_full, h_free, w_held, w_full, w_free = rings
    ROUNDS: gl.constexpr = DIM // BAND
    first, last = _share(plan, HIDDEN // ROWS)
    band = gl.program_id(0) % (HIDDEN // ROWS)
    held = 0
    for tile in range(first, last):
        expert, row, _, _, is_new, _ = _tile(plan, tile, first, last)
        for k in range(ROUNDS):
            if is_new:
                mbarrier.wait(w_free.index(k), (held & 1) ^ 1)
                mbarrier.expect(w_full.index(k), ROWS * BAND)
                w_row = expert * HIDDEN + band * ROWS
                tma.async_copy_global_to_shared(
                    w_desc, [w_row, k * BAND], w_full.index(k), w_held.index(k)
                )
            rounds = (tile - first) // GROUPS * ROUNDS + k
            slot = (tile - first) % GROUPS * SLOTS + rounds % SLOTS
            mbarrier.wait(h_free.index(slot), (rounds // SLOTS & 1) ^ 1)
            mbarrier.expect(h_full.index(slot), PAIRS * BAND)
            tma.async_copy_global_to_shared(
                h_desc, [row, k * BAND], h_full.index(slot), h_ring.index(slot)
            )
        if is_new:
            held += 1


@gluon.jit
def _product(
    rings, rounds, group, held, is_last, p_h_scales, p_w_scales, DIM: gl.constexpr,
    mma: gl.constexpr,
):  # fmt: skip
    """The product [64, 256] of a group. ``p_h_scales``: each row's scales, side by side;
    ``is_last``: the group needs the weights no more."""
    h_ring, h_full, h_free, w_held, w_full, w_free = rings
    ROUNDS: gl.constexpr = DIM // BAND
    is_first = (gl.arange(0, ROWS, gl.SliceLayout(0, mma)) < BAND)[None, :]
    b_y = gl.zeros([PAIRS, ROWS], gl.float32, mma)
    p_others = p_w_scales + ROUNDS
    b_scale, scale, other = gl.load(p_h_scales), gl.load(p_w_scales), gl.load(p_others)
    for k in range(ROUNDS):
        slot = group * SLOTS + rounds % SLOTS
        mbarrier.wait(w_full.index(k), held & 1)
        mbarrier.wait(h_full.index(slot), rounds // SLOTS & 1)
        b_y = warpgroup_mma(h_ring.index(slot), w_held.index(k).permute((1, 0)), b_y, is_async=True)
        more = k + 1 < ROUNDS
        b_next = gl.load(p_h_scales + k + 1, mask=more, other=1.0)
        next_scale = gl.load(p_w_scales + k + 1, mask=more, other=1.0)
        next_other = gl.load(p_others + k + 1, mask=more, other=1.0)
        b_y = warpgroup_mma_wait(0, deps=[b_y])
        mbarrier.arrive(h_free.index(slot))
        mbarrier.arrive(w_free.index(k), pred=is_last)
        b_step = b_scale / b_next
        b_first = (b_step * (scale / next_scale))[:, None]
        b_y *= gl.where(is_first, b_first, (b_step * (other / next_other))[:, None])
        b_scale, scale, other = b_next, next_scale, next_other
        rounds += 1
    return b_y


@gluon.jit
def _multiply(
    rings,
    plan,
    group,
    factors,
    p_y,
    HIDDEN: gl.constexpr,
    DIM: gl.constexpr,
):
    p_weights, p_h_scales, p_w_scales = factors
    w_full, w_free = rings[4], rings[5]
    ROUNDS: gl.constexpr = DIM // BAND
    mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 32])
    stored: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])
    place = gl.arange(0, PAIRS, gl.SliceLayout(1, mma))
    o_pair = gl.arange(0, PAIRS, gl.SliceLayout(1, stored))
    o_n = gl.arange(0, BAND, gl.SliceLayout(0, stored))[None, :]
    first, last = _share(plan, HIDDEN // ROWS)
    band = gl.program_id(0) % (HIDDEN // ROWS)
    held = -1
    for tile in range(first, last):
        expert, row, p_list, count, is_new, num_left = _tile(plan, tile, first, last)
        if is_new:
            held += 1
        if (tile - first) % GROUPS == group:
            pair = gl.load(p_list + place, mask=place < count, other=0)
            b_weight = gl.load(p_weights + pair)[:, None]
            valid = o_pair < count
            b_pair = gl.load(p_list + o_pair, mask=valid, other=0).to(gl.int64)
            h_row = row + gl.minimum(place, count - 1)
            b_y = _product(
                rings, (tile - first) // GROUPS * ROUNDS, group, held, num_left <= GROUPS,
                p_h_scales + h_row.to(gl.int64) * ROUNDS,
                p_w_scales + (expert * (HIDDEN // BAND) + 2 * band) * ROUNDS, DIM, mma,
            )  # fmt: skip
            b_y = (b_y * b_weight).to(p_y.dtype.element_ty)
            b_first, b_second = gl.split(gl.permute(gl.reshape(b_y, [PAIRS, 2, BAND]), (0, 2, 1)))
            p_out = p_y + b_pair[:, None] * HIDDEN + band * ROWS + o_n
            gl.store(p_out, gl.convert_layout(b_first, stored), mask=valid[:, None])
            gl.store(p_out + BAND, gl.convert_layout(b_second, stored), mask=valid[:, None])
        elif is_new & (num_left == 1):
            # The weights are held for the other group's tile alone.
            for k in range(ROUNDS):
                mbarrier.wait(w_full.index(k), held & 1)
                mbarrier.arrive(w_free.index(k))


@gluon.jit(do_not_specialize=["num_tokens", "num_tiles"])
def down_kernel(
    h_desc,
    p_h_scales,
    p_lists,
    p_counts,
    p_tiles,
    p_weights,
    w_desc,
    p_w_scales,
    p_y,
    num_tokens,
    num_tiles,
    HIDDEN: gl.constexpr,
    DIM: gl.constexpr,
    PDL: gl.constexpr,
):
    ROUNDS: gl.constexpr = DIM // BAND
    h_ring = gl.allocate_shared_memory(h_desc.dtype, [GROUPS * SLOTS, PAIRS, BAND], h_desc.layout)
    w_held = gl.allocate_shared_memory(w_desc.dtype, [ROUNDS, ROWS, BAND], w_desc.layout)
    h_full = gl.allocate_shared_memory(gl.int64, [GROUPS * SLOTS, 1], mbarrier.MBarrierLayout())
    h_free = gl.allocate_shared_memory(gl.int64, [GROUPS * SLOTS, 1], mbarrier.MBarrierLayout())
    w_full = gl.allocate_shared_memory(gl.int64, [ROUNDS, 1], mbarrier.MBarrierLayout())
    w_free = gl.allocate_shared_memory(gl.int64, [ROUNDS, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(GROUPS * SLOTS):
        mbarrier.init(h_full.index(slot), count=1)
        mbarrier.init(h_free.index(slot), count=1)
    for k in gl.static_range(ROUNDS):
        mbarrier.init(w_full.index(k), count=1)
        mbarrier.init(w_free.index(k), count=GROUPS)
    rings = h_ring, h_full, h_free, w_held, w_full, w_free
    plan = p_lists, p_counts, p_tiles, num_tokens, num_tiles
    factors = p_weights, p_h_scales, p_w_scales
    wait_for_inputs(PDL)
    gl.warp_specialize(
        [
            (_multiply, (rings, plan, 0, factors, p_y, HIDDEN, DIM)),
            (_multiply, (rings, plan, 1, factors, p_y, HIDDEN, DIM)),
            (_fetch, (rings, plan, h_desc, w_desc, HIDDEN, DIM)),
        ],
        [4, FETCHERS],
        [232, 40],
    )
