# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Attention without a mask on Hopper, queries and keys in int8, by warps that each do one part.

    s[i, j] = a[i] b[J] (q[i] . k[j]),   o[i] = sum_j exp2(s[i, j]) v[j] / sum_j exp2(s[i, j])

q and k are int8, a a query's scale and b that of the TILE keys J (triton_int8.py). A program has
128 queries of a KV head, and a part of the keys. One group of warps has the copy engine fetch tiles
of keys and of values, up to STAGES of each ahead. Two groups of four warps have 64 queries each.
While a group computes the weights of a tile, the tensor cores multiply: its queries with the next
keys, its last weights with their values, and all for the other group. Stages are ``full`` when they
have arrived, and ``free`` when both groups have multiplied them.

Products of q and k are exact. Weights are rounded to bfloat16 for their product with the values,
and all sums are float32.

Reference: cudnn_attention.attend; test: tests/kernels/attention/test_int8_attention.py.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

GROUPS = gl.constexpr(2)
QUERIES = gl.constexpr(64)
"""Queries of a group."""
TILE = gl.constexpr(64)
"""Keys of a tile."""
STAGES = gl.constexpr(4)
DIM = gl.constexpr(256)


@gluon.jit
def _part(num_keys):
    """The first tile of this program's part of the keys, and the number of its tiles."""
    num_tiles, part, parts = num_keys // TILE, gl.program_id(2), gl.num_programs(2)
    first = part * num_tiles // parts
    return first, (part + 1) * num_tiles // parts - first


@gluon.jit
def _fetch(rings, descriptors, num_queries, num_keys):
    q_desc, k_desc, v_desc = descriptors
    q_held, q_full, k_ring, k_full, k_free, v_ring, v_full, v_free = rings
    head = gl.program_id(1)
    q_row = head * num_queries + gl.program_id(0) * (GROUPS * QUERIES)
    mbarrier.expect(q_full, GROUPS * QUERIES * DIM)
    for group in gl.static_range(GROUPS):
        q_from = [q_row + group * QUERIES, 0]
        tma.async_copy_global_to_shared(q_desc, q_from, q_full, q_held.index(group))
    first, num_tiles = _part(num_keys)
    for i in range(num_tiles):
        stage, parity = i % STAGES, (i // STAGES & 1) ^ 1
        key = (first + i) * TILE
        mbarrier.wait(k_free.index(stage), parity)
        ready = k_full.index(stage)
        mbarrier.expect(ready, TILE * DIM)
        k_from = [head * num_keys + key, 0]
        tma.async_copy_global_to_shared(k_desc, k_from, ready, k_ring.index(stage))
        mbarrier.wait(v_free.index(stage), parity)
        ready = v_full.index(stage)
        mbarrier.expect(ready, 2 * TILE * DIM)
        tma.async_copy_global_to_shared(v_desc, [key, head * DIM], ready, v_ring.index(stage))


@gluon.jit
def _weights(b_s, so_far, b_scale, p_k_scale):
    """The weights of a tile's keys by the largest score so far; that score, and the sum of weights
    so far; and the factor by which earlier sums shrink."""
    b_max, b_sum = so_far
    b_scale = b_scale * gl.load(p_k_scale)
    b_s = b_s.to(gl.float32)
    b_new = gl.maximum(b_max, gl.max(b_s, 1) * b_scale)
    b_p = gl.exp2(b_s * b_scale[:, None] - b_new[:, None])
    b_shrink = gl.exp2(b_max - b_new)
    return b_p, (b_new, b_sum * b_shrink + gl.sum(b_p, 1)), b_shrink


@gluon.jit
def _score(rings, q, i, scores: gl.constexpr):
    """Begin the product of queries and the keys of tile i."""
    _, _, k_ring, k_full, _, _, _, _ = rings
    mbarrier.wait(k_full.index(i % STAGES), i // STAGES & 1)
    nothing = gl.zeros([QUERIES, TILE], gl.int32, scores)
    k = k_ring.index(i % STAGES).permute((1, 0))
    return warpgroup_mma(q, k, nothing, use_acc=False, is_async=True)


@gluon.jit
def _add(rings, b_p, b_o, i):
    """Begin to add the values of tile i, by their weights."""
    _, _, _, _, _, v_ring, v_full, _ = rings
    mbarrier.wait(v_full.index(i % STAGES), i // STAGES & 1)
    return warpgroup_mma(b_p, v_ring.index(i % STAGES), b_o, is_async=True)


@gluon.jit
def _attend(rings, outputs, p_q_scales, p_k_scales, num_queries, num_keys, group):
    q_held, q_full, _, _, k_free, _, _, v_free = rings
    p_out, p_log_sums, p_biases = outputs
    scores: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TILE, 32])
    sums: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, DIM, 16])
    factors: gl.constexpr = gl.DotOperandLayout(0, sums, 2)
    of_scores: gl.constexpr = gl.SliceLayout(1, scores)
    of_sums: gl.constexpr = gl.SliceLayout(1, sums)
    head = gl.program_id(1)
    row = head * num_queries + gl.program_id(0) * (GROUPS * QUERIES) + group * QUERIES
    o_row = row + gl.arange(0, QUERIES, of_scores)
    b_scale = gl.load(p_q_scales + o_row)
    b_max = gl.full([QUERIES], float("-inf"), gl.float32, of_scores)
    so_far = b_max, gl.zeros([QUERIES], gl.float32, of_scores)
    b_o = gl.zeros([QUERIES, DIM], gl.float32, sums)
    first, num_tiles = _part(num_keys)
    p_k_scale = p_k_scales + head * (num_keys // TILE) + first
    mbarrier.wait(q_full, 0)
    q = q_held.index(group)
    b_s = warpgroup_mma_wait(0, deps=[_score(rings, q, 0, scores)])
    mbarrier.arrive(k_free.index(0))
    b_p, so_far, _ = _weights(b_s, so_far, b_scale, p_k_scale)
    b_p = gl.convert_layout(b_p.to(p_out.dtype.element_ty), factors)
    for i in range(num_tiles - 1):
        b_s = _score(rings, q, i + 1, scores)
        b_o = _add(rings, b_p, b_o, i)
        b_s = warpgroup_mma_wait(1, deps=[b_s])
        mbarrier.arrive(k_free.index((i + 1) % STAGES))
        b_next, so_far, b_shrink = _weights(b_s, so_far, b_scale, p_k_scale + i + 1)
        b_o, b_p = warpgroup_mma_wait(0, deps=[b_o, b_p])
        mbarrier.arrive(v_free.index(i % STAGES))
        b_o *= gl.convert_layout(b_shrink, of_sums)[:, None]
        b_p = gl.convert_layout(b_next.to(p_out.dtype.element_ty), factors)
    b_o = warpgroup_mma_wait(0, deps=[_add(rings, b_p, b_o, num_tiles - 1)])
    b_max, b_sum = so_far
    b_log_sum = (b_max + gl.log2(b_sum)) * 0.6931471805599453 + gl.load(p_biases + o_row)
    part = gl.program_id(2) * gl.num_programs(1) * num_queries
    gl.store(p_log_sums + part + o_row, b_log_sum)
    b_o /= gl.convert_layout(b_sum, of_sums)[:, None]
    o_out = (part + row + gl.arange(0, QUERIES, of_sums)).to(gl.int64)[:, None] * DIM
    o_d = gl.arange(0, DIM, gl.SliceLayout(0, sums))[None, :]
    gl.store(p_out + o_out + o_d, b_o.to(p_out.dtype.element_ty))


@gluon.jit(do_not_specialize=["num_queries", "num_keys"])
def attention_kernel(
    q_desc,
    p_q_scales,
    k_desc,
    p_k_scales,
    v_desc,
    p_biases,
    p_out,
    p_log_sums,
    num_queries,
    num_keys,
):
    q_held = gl.allocate_shared_memory(q_desc.dtype, [GROUPS, QUERIES, DIM], q_desc.layout)
    k_ring = gl.allocate_shared_memory(k_desc.dtype, [STAGES, TILE, DIM], k_desc.layout)
    v_ring = gl.allocate_shared_memory(v_desc.dtype, [STAGES, TILE, DIM], v_desc.layout)
    q_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    k_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    mbarrier.init(q_full, count=1)
    for stage in gl.static_range(STAGES):
        mbarrier.init(k_full.index(stage), count=1)
        mbarrier.init(k_free.index(stage), count=GROUPS)
        mbarrier.init(v_full.index(stage), count=1)
        mbarrier.init(v_free.index(stage), count=GROUPS)
    rings = q_held, q_full, k_ring, k_full, k_free, v_ring, v_full, v_free
    descriptors, outputs = (q_desc, k_desc, v_desc), (p_out, p_log_sums, p_biases)
    gl.warp_specialize(
        [
            (_attend, (rings, outputs, p_q_scales, p_k_scales, num_queries, num_keys, 0)),
            (_attend, (rings, outputs, p_q_scales, p_k_scales, num_queries, num_keys, 1)),
            (_fetch, (rings, descriptors, num_queries, num_keys)),
        ],
        [4, 4],
        [240, 24],
    )
