# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Gate and up of experts in FP8 on Hopper, by warps that each do one part of the work.

    h[p] = silu(gate_e x_t) * (up_e x_t),   pair p = (t, j), e = ids[p]

A program takes tiles in turn: up to 192 pairs of one expert, times 128 rows of gate and of up. One
group of warps fetches, up to STAGES rounds of 128 columns ahead: it copies the pairs' rows of
``x``, each from its own address, and has the copy engine fetch the weights. Three groups of four
warps multiply 64 pairs each, so that the tensor cores work for one while another scales its sums.
Barriers connect them: a stage is ``full`` when a round's operands have arrived, and ``free`` when
all groups have multiplied them.

Sums are scaled as in ``triton_experts_fp8``, with the same bits.

Reference: triton_experts_fp8; test: tests/kernels/experts/test_hopper_experts.py,
tests/gpu/test_fp8.py.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from engine.kernels.experts.triton_expert_tiles import list_of, tile_of
from engine.kernels.formats.triton_quantise import quantised
from engine.kernels.triton_overlap import wait_for_inputs

GROUPS = gl.constexpr(3)
PAIRS = gl.constexpr(64)
"""Pairs of a tile that a group multiplies."""
BAND = gl.constexpr(128)
"""Rows of gate and of up of a tile, and columns of a round: what shares a scale."""
STAGES = gl.constexpr(3)
FETCHERS = gl.constexpr(4)
"""Warps that fetch."""


@gluon.jit
def num_needed(plan):
    """The number of tiles that this routing needs."""
    _, _, p_tiles, _, num_tiles = plan
    return gl.load(p_tiles + num_tiles - 1)


@gluon.jit
def tile_in_list(plan, tile):
    """A tile's expert; first place in the expert's list; row of h; the address of its pairs in the
    list, and their number to the list's end."""
    p_lists, p_counts, p_tiles, num_tokens, num_tiles = plan
    expert, start, row = tile_of(p_tiles, tile, num_tiles)
    p_list, count = list_of(p_lists, p_counts, expert, num_tokens)
    return expert, start, row, p_list + start, count - start


@gluon.jit
def _row_offsets(p_list, count, K: gl.constexpr, TOP_K: gl.constexpr, layout: gl.constexpr):
    """Where in x the rows of a group's pairs begin; row 0 behind the list's end."""
    place = gl.arange(0, PAIRS, gl.SliceLayout(1, layout))
    return gl.load(p_list + place, mask=place < count, other=0) // TOP_K * K


@gluon.jit
def _fetch(
    rings,
    plan,
    p_x,
    w_desc,
    K: gl.constexpr,
    DIM: gl.constexpr,
    TOP_K: gl.constexpr,
):
    x_ring, w_ring, full, free = rings
    layout: gl.constexpr = gl.BlockedLayout([1, 16], [4, 8], [gl.num_warps(), 1], [1, 0])
    o_k = gl.arange(0, BAND, gl.SliceLayout(0, layout))[None, :]
    rounds = 0
    num_tiles = num_needed(plan)
    for work in range(gl.program_id(0), num_tiles * (DIM // BAND), gl.num_programs(0)):
        expert, _, _, p_list, count = tile_in_list(plan, work // (DIM // BAND))
        w_row = expert * (2 * DIM) + work % (DIM // BAND) * BAND
        o_first = _row_offsets(p_list, count, K, TOP_K, layout)
        o_second = _row_offsets(p_list + PAIRS, count - PAIRS, K, TOP_K, layout)
        o_third = _row_offsets(p_list + 2 * PAIRS, count - 2 * PAIRS, K, TOP_K, layout)
        for k in range(0, K, BAND):
            stage = rounds % STAGES
            mbarrier.wait(free.index(stage), (rounds // STAGES & 1) ^ 1)
            ready = full.index(stage)
            mbarrier.expect(ready, 2 * BAND * BAND)
            gate, up = w_ring.index(2 * stage), w_ring.index(2 * stage + 1)
            tma.async_copy_global_to_shared(w_desc, [w_row, k], ready, gate)
            tma.async_copy_global_to_shared(w_desc, [w_row + DIM, k], ready, up)
            x = GROUPS * stage
            p_columns = p_x + k + o_k
            async_copy.async_copy_global_to_shared(x_ring.index(x), p_columns + o_first[:, None])
            if count > PAIRS:
                p_second = p_columns + o_second[:, None]
                async_copy.async_copy_global_to_shared(x_ring.index(x + 1), p_second)
            if count > 2 * PAIRS:
                p_third = p_columns + o_third[:, None]
                async_copy.async_copy_global_to_shared(x_ring.index(x + 2), p_third)
            # Each thread arrives when its copies have.
            async_copy.mbarrier_arrive(ready, increment_count=False)
            rounds += 1


@gluon.jit
def _products(
    rings, rounds, group, p_x_scales, x_stride, p_gate_scales, K: gl.constexpr, DIM: gl.constexpr,
    mma: gl.constexpr,
):  # fmt: skip
    """Both products [64, 128] of a group, and the number of rounds so far. ``p_x_scales``: the
    scales of the group's rows, of the first columns; ``x_stride`` leads to the next columns'."""
    x_ring, w_ring, full, free = rings
    b_gate = gl.zeros([PAIRS, BAND], gl.float32, mma)
    b_up = gl.zeros([PAIRS, BAND], gl.float32, mma)
    p_up_scales = p_gate_scales + DIM // BAND * (K // BAND)
    b_scale, gate_scale = gl.load(p_x_scales), gl.load(p_gate_scales)
    up_scale = gl.load(p_up_scales)
    for k in range(1, K // BAND + 1):
        stage = rounds % STAGES
        mbarrier.wait(full.index(stage), rounds // STAGES & 1)
        # Ordinary copies wrote x, and the tensor cores read it.
        fence_async_shared()
        x = x_ring.index(GROUPS * stage + group)
        gate, up = w_ring.index(2 * stage), w_ring.index(2 * stage + 1)
        b_gate = warpgroup_mma(x, gate.permute((1, 0)), b_gate, is_async=True)
        b_up = warpgroup_mma(x, up.permute((1, 0)), b_up, is_async=True)
        more = k < K // BAND
        b_next = gl.load(p_x_scales + k * x_stride, mask=more, other=1.0)
        next_gate = gl.load(p_gate_scales + k, mask=more, other=1.0)
        next_up = gl.load(p_up_scales + k, mask=more, other=1.0)
        b_gate, b_up = warpgroup_mma_wait(0, deps=[b_gate, b_up])
        mbarrier.arrive(free.index(stage))
        b_step = b_scale / b_next
        b_gate *= (b_step * (gate_scale / next_gate))[:, None]
        b_up *= (b_step * (up_scale / next_up))[:, None]
        b_scale, gate_scale, up_scale = b_next, next_gate, next_up
        rounds += 1
    return b_gate, b_up, rounds


@gluon.jit
def _nothing(rings, rounds, NUM: gl.constexpr):
    """The rounds of a tile that has no pairs for this group."""
    _, _, full, free = rings
    for _ in range(NUM):
        stage = rounds % STAGES
        mbarrier.wait(full.index(stage), rounds // STAGES & 1)
        mbarrier.arrive(free.index(stage))
        rounds += 1
    return rounds


@gluon.jit
def _multiply(
    rings,
    plan,
    group,
    scales,
    outputs,
    K: gl.constexpr,
    DIM: gl.constexpr,
    TOP_K: gl.constexpr,
):
    p_x_scales, scale_stride, p_w_scales = scales
    p_h, p_h_scales = outputs
    mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BAND, 32])
    stored: gl.constexpr = gl.BlockedLayout([1, 16], [4, 8], [4, 1], [1, 0])
    place = gl.arange(0, PAIRS, gl.SliceLayout(1, mma))
    o_h = gl.arange(0, PAIRS, gl.SliceLayout(1, stored))
    o_n = gl.arange(0, BAND, gl.SliceLayout(0, stored))[None, :]
    rounds = 0
    num_tiles = num_needed(plan)
    for work in range(gl.program_id(0), num_tiles * (DIM // BAND), gl.num_programs(0)):
        band = work % (DIM // BAND)
        expert, _, row, p_list, count = tile_in_list(plan, work // (DIM // BAND))
        own = count - group * PAIRS
        if own > 0:
            pair = gl.load(p_list + group * PAIRS + place, mask=place < own, other=0)
            p_gate_scales = p_w_scales + (expert * (2 * DIM // BAND) + band) * (K // BAND)
            b_gate, b_up, rounds = _products(
                rings,
                rounds,
                group,
                p_x_scales + pair // TOP_K,
                scale_stride,
                p_gate_scales,
                K,
                DIM,
                mma,
            )
            b_q, b_scales = quantised(b_gate / (1.0 + gl.exp(-b_gate)) * b_up)
            first = (row + group * PAIRS).to(gl.int64)
            p_scales = p_h_scales + (first + place) * (DIM // BAND) + band
            gl.store(p_scales, b_scales, mask=place < own)
            p_out = p_h + (first + o_h)[:, None] * DIM + band * BAND + o_n
            gl.store(p_out, gl.convert_layout(b_q, stored), mask=(o_h < own)[:, None])
        else:
            rounds = _nothing(rings, rounds, K // BAND)


@gluon.jit(do_not_specialize=["num_tokens", "scale_stride", "num_tiles"])
def gate_up_kernel(
    p_x,
    p_x_scales,
    p_lists,
    p_counts,
    p_tiles,
    w_desc,
    p_w_scales,
    p_h,
    p_h_scales,
    num_tokens,
    scale_stride,
    num_tiles,
    K: gl.constexpr,
    DIM: gl.constexpr,
    TOP_K: gl.constexpr,
    PDL: gl.constexpr,
):
    x_ring = gl.allocate_shared_memory(w_desc.dtype, [GROUPS * STAGES, PAIRS, BAND], w_desc.layout)
    w_ring = gl.allocate_shared_memory(w_desc.dtype, [2 * STAGES, BAND, BAND], w_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        # One arrival for each thread that fetches, and one for the weights.
        mbarrier.init(full.index(stage), count=32 * FETCHERS + 1)
        mbarrier.init(free.index(stage), count=GROUPS)
    rings, plan = (x_ring, w_ring, full, free), (p_lists, p_counts, p_tiles, num_tokens, num_tiles)
    scales, outputs = (p_x_scales, scale_stride, p_w_scales), (p_h, p_h_scales)
    wait_for_inputs(PDL)
    gl.warp_specialize(
        [
            (_multiply, (rings, plan, 0, scales, outputs, K, DIM, TOP_K)),
            (_multiply, (rings, plan, 1, scales, outputs, K, DIM, TOP_K)),
            (_multiply, (rings, plan, 2, scales, outputs, K, DIM, TOP_K)),
            (_fetch, (rings, plan, p_x, w_desc, K, DIM, TOP_K)),
        ],
        [4, 4, FETCHERS],
        [160, 160, 32],
    )
