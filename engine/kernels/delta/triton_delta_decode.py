"""One decode step of Gated DeltaNet, from the convolved projection to the gated norm.

For each row and value head, with S [k_dim, v_dim] the head's float32 state:

    q, k <- x / |x|,  q <- q / sqrt(k_dim)
    beta = sigmoid(b);   decay = exp(neg_exp_a * softplus(a + dt_bias))
    u = beta (v - decay S^T k);   o = decay S^T q + (q . k) u;   S <- decay S + k u^T
    out = o / rms(o) * norm * silu(z)

Programs start while the projection still runs (programmatic dependent launch), read their part of
the state, and only then wait for the projection. The state is read once and written once; both
products with it come from that read (arXiv:2412.06464 writes o after the update: the same number).
If several programs share a head, the last one to arrive norms it.

With drafts a row has several tokens. The state is stored after the certain tokens, the first one or
none; the updates of the others go to the ring (state_ring.py). Pending updates of the previous step
are applied first. The kernel says explicitly which product is fused with a sum: the compiler's
choice would depend on the surrounding code, and an update from the ring must have the same bits.

Reference: torch_delta_rule.recurrent, torch_drafts.recurrent_drafts; test:
tests/kernels/delta/test_delta.py, test_drafts.py.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from engine.cache.state_ring import StateRing
from engine.kernels.formats.triton_split import PARTS as SPLIT_PARTS
from engine.kernels.formats.triton_split import Split, store_group
from engine.kernels.triton_overlap import overlap, wait_for_inputs


@dataclass(frozen=True)
class DeltaWorkspace:
    """Scratch of ``delta_decode``; calls on one stream may share it.

    ``outputs`` [rows, value_dim] float32; ``arrivals`` [rows, v_heads] int32, zero between calls.
    """

    outputs: torch.Tensor
    arrivals: torch.Tensor

    @classmethod
    def allocate(
        cls, max_rows: int, num_v_heads: int, v_dim: int, device: torch.device
    ) -> "DeltaWorkspace":
        return cls(
            torch.empty(max_rows, num_v_heads * v_dim, device=device),
            torch.zeros(max_rows, num_v_heads, dtype=torch.int32, device=device),
        )


def ring_shape(num_v_heads: int, dim: int) -> tuple[int, int]:
    """(parts, numbers) of a ``StateRing``: each program of a row keeps k, u and decay for its own
    columns of the state; no other program reads them."""
    columns = _columns(dim)
    return num_v_heads * (dim // columns), _ring_width(dim, columns)


def _columns(dim: int) -> int:
    """Number of columns of a head's state per program, as measured best. It is the same for every
    batch, so that a row's bits do not depend on the other rows."""
    return dim // 2


def _ring_width(dim: int, columns: int) -> int:
    return -(-(dim + columns + 1) // 16) * 16


def delta_decode(
    projected: torch.Tensor,
    neg_exp_a: torch.Tensor,
    dt_bias: torch.Tensor,
    norm_weight: torch.Tensor,
    state: torch.Tensor,
    state_slots: torch.Tensor,
    eps: float,
    workspace: DeltaWorkspace,
    ring: StateRing | None = None,
    num_stored: int = 1,
    *,
    split: Split | None = None,
    block_columns: int = 0,
    num_warps: int = 0,
) -> torch.Tensor:
    """Advance each row's state by one token -> [tokens, value_dim] in ``projected``'s dtype.

    projected [tokens, q | k | v | z | b | a], q, k and v convolved; state [state slots, v_heads,
    k_dim, v_dim] float32 (one layer's view) is updated in place at ``state_slots`` (int32 [rows]);
    neg_exp_a, dt_bias [v_heads] and norm_weight [v_dim] are float32. Every row has equally many
    tokens, adjacent; the state is stored behind the first ``num_stored`` (0 or 1) of them. Further
    tokens need a ``ring`` that holds them, whose pending updates are applied first. A row whose
    slot is -1 yields zeros and writes nothing. Two rows must not share a slot. ``split`` also
    receives the result split in two, with a scale per head. ``block_columns`` and ``num_warps`` 0:
    the values measured best.
    """
    (num_tokens, width), num_rows = projected.shape, state_slots.shape[0]
    num_v_heads, k_dim, v_dim = state.shape[1:]
    value_dim = num_v_heads * v_dim
    num_k_heads = (width - 2 * (value_dim + num_v_heads)) // (2 * k_dim)
    assert width == 2 * (num_k_heads * k_dim + value_dim + num_v_heads), (width, state.shape)
    assert state.dtype == torch.float32, state.dtype
    assert state.stride()[1:] == (k_dim * v_dim, v_dim, 1), state.stride()
    assert projected.stride(1) == 1, projected.stride()
    assert num_tokens % max(num_rows, 1) == 0, (num_tokens, num_rows)
    assert state_slots.is_contiguous()
    assert k_dim == v_dim, state.shape
    assert workspace.outputs.shape[0] >= num_tokens, (workspace.outputs.shape, num_tokens)
    assert workspace.outputs.shape[1] == value_dim, workspace.outputs.shape
    if not block_columns:
        block_columns, num_warps = _columns(v_dim), 2
    assert v_dim % block_columns == 0, (v_dim, block_columns)
    out = torch.empty(num_tokens, value_dim, dtype=projected.dtype, device=projected.device)
    assert split is None or split.is_of_rows(out, num_v_heads)
    if num_rows == 0:
        return out
    tokens_each, num_programs = num_tokens // num_rows, num_v_heads * (v_dim // block_columns)
    updates, pending, ring_width = workspace.outputs, workspace.arrivals, 0
    if ring is not None:
        updates, pending, ring_width = ring.updates, ring.pending, _ring_width(v_dim, block_columns)
        assert updates.shape[1] == num_programs, (updates.shape, num_programs)
        assert updates.shape[2] >= tokens_each - num_stored, (updates.shape, tokens_each)
        assert updates.shape[3] == ring_width, (updates.shape, ring_width)
        assert updates[0].is_contiguous()
        assert pending.dtype == torch.int32, pending.dtype
    assert num_stored in (0, 1), num_stored
    assert ring is not None or tokens_each == num_stored, "tokens behind the state without a ring"
    _update_kernel[(num_programs, num_rows)](
        projected, neg_exp_a, dt_bias, norm_weight, state, state_slots, out,
        out if split is None else split.q, out if split is None else split.s,
        workspace.outputs, workspace.arrivals, updates, pending,
        projected.stride(0), state.stride(0), updates.stride(0), updates.stride(1),
        k_dim**-0.5, eps,
        K_HEADS=num_k_heads, V_HEADS=num_v_heads, DIM=v_dim, COLUMNS=block_columns,
        TOKENS=tokens_each, STORED=num_stored, RING_WIDTH=ring_width,
        IS_SPLIT=split is not None, num_warps=num_warps, **overlap(projected),
    )  # fmt: skip
    return out


@triton.jit
def _add_two(a_0, a_1, b_0, b_1):
    """Sum two tensors in one reduction, which waits for the other warps only once."""
    return a_0 + b_0, a_1 + b_1


@triton.jit
def _add_three(a_0, a_1, a_2, b_0, b_1, b_2):
    return a_0 + b_0, a_1 + b_1, a_2 + b_2


@triton.jit
def _update_kernel(
    p_x,
    p_neg_exp_a,
    p_dt_bias,
    p_norm,
    p_state,
    p_slots,
    p_out,
    p_q,
    p_scales,
    p_outputs,
    p_arrivals,
    p_ring,
    p_pending,
    x_stride,
    state_slot_stride,
    ring_slot_stride,
    ring_program_stride,
    scale,
    eps,
    K_HEADS: tl.constexpr,
    V_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
    TOKENS: tl.constexpr,
    STORED: tl.constexpr,
    RING_WIDTH: tl.constexpr,
    IS_SPLIT: tl.constexpr,
    PDL: tl.constexpr,
):
    """Update COLUMNS of one head's state of one row by its TOKENS tokens, and store it behind the
    first STORED of them. RING_WIDTH 0: no ring."""
    PARTS: tl.constexpr = DIM // COLUMNS
    CHANNELS: tl.constexpr = (2 * K_HEADS + V_HEADS) * DIM
    head, part, row = tl.program_id(0) // PARTS, tl.program_id(0) % PARTS, tl.program_id(1)
    o_k = tl.arange(0, DIM)
    o_v = part * COLUMNS + tl.arange(0, COLUMNS)
    WIDTH: tl.constexpr = V_HEADS * DIM
    p_out += row * (TOKENS * WIDTH) + head * DIM
    p_q += row * (TOKENS * SPLIT_PARTS * WIDTH) + head * DIM
    p_scales += row * (TOKENS * V_HEADS) + head
    slot = tl.load(p_slots + row).to(tl.int64)
    if slot < 0:
        if row == 0:
            # Padding comes last: no row is live, but a program has to wait for the predecessor.
            wait_for_inputs(PDL)
        b_none = tl.zeros([COLUMNS], tl.float32)
        for j in tl.static_range(TOKENS):
            tl.store(p_out + j * WIDTH + o_v, b_none.to(p_out.dtype.element_ty))
            if IS_SPLIT:
                p_none, p_scale = p_q + j * (SPLIT_PARTS * WIDTH) + o_v, p_scales + j * V_HEADS
                store_group(b_none, p_none, p_scale, o_v < DIM, WIDTH)
        return
    # No earlier kernel of this step has written the state or ``p_pending``, and only this kernel
    # reads the state: it may also be stored before the wait.
    p_s = p_state + slot * state_slot_stride + head * (DIM * DIM)
    p_s += o_k[:, None] * DIM + o_v[None, :]
    # Read and written once a step: keep it from evicting weights and activations from L2.
    b_s = tl.load(p_s, eviction_policy="evict_first")
    b_dt_bias, b_neg_exp_a = tl.load(p_dt_bias + head), tl.load(p_neg_exp_a + head)
    if RING_WIDTH > 0:
        p_ring += slot * ring_slot_stride + tl.program_id(0).to(tl.int64) * ring_program_stride
        for i in range(tl.load(p_pending + slot)):
            p_update = p_ring + i * RING_WIDTH
            b_k = tl.load(p_update + o_k)
            b_u = tl.load(p_update + DIM + tl.arange(0, COLUMNS))
            b_s = _updated(b_s, b_k, b_u, tl.load(p_update + DIM + COLUMNS))
        # NOTE: every thread has read the ring before any writes it.
        tl.debug_barrier()
    if STORED == 0:
        tl.store(p_s, b_s, eviction_policy="evict_first")
    wait_for_inputs(PDL)
    k_head = head // (V_HEADS // K_HEADS)
    for j in tl.static_range(TOKENS):
        p_j = p_x + (row * TOKENS + j) * x_stride.to(tl.int64)
        p_b = p_j + CHANNELS + V_HEADS * DIM + head
        b_b, b_a = tl.load(p_b), tl.load(p_b + V_HEADS)
        b_q = tl.load(p_j + k_head * DIM + o_k)
        b_k = tl.load(p_j + (K_HEADS + k_head) * DIM + o_k)
        b_v = tl.load(p_j + (2 * K_HEADS + head) * DIM + o_v)
        b_q, b_k, b_v = b_q.to(tl.float32), b_k.to(tl.float32), b_v.to(tl.float32)
        b_beta = tl.sigmoid(b_b.to(tl.float32))
        b_a = b_a.to(tl.float32) + b_dt_bias
        b_softplus = tl.where(b_a > 20.0, b_a, tl.log(1.0 + tl.exp(b_a)))
        b_decay = tl.exp(b_neg_exp_a * b_softplus)
        b_qq, b_kk, b_qk = tl.reduce((b_q * b_q, b_k * b_k, b_q * b_k), 0, _add_three)
        b_q_scale, b_k_scale = tl.rsqrt(b_qq + 1e-6) * scale, tl.rsqrt(b_kk + 1e-6)
        b_q *= b_q_scale
        b_k *= b_k_scale
        b_qk *= b_q_scale * b_k_scale
        b_kv, b_qv = tl.reduce((b_s * b_k[:, None], b_s * b_q[:, None]), 0, _add_two)
        b_u = b_beta * tl.fma(-b_decay, b_kv, b_v)
        b_o = tl.fma(b_decay, b_qv, b_qk * b_u)
        p_z = p_j + CHANNELS + head * DIM
        p_o, p_oq, p_os = p_out + j * WIDTH, p_q + j * (SPLIT_PARTS * WIDTH), p_scales + j * V_HEADS
        if PARTS == 1:
            _store_normed(p_o, p_oq, p_os, p_z, p_norm, b_o, eps, DIM, WIDTH, IS_SPLIT)
        else:
            p_all = p_outputs + (row * TOKENS + j) * WIDTH + head * DIM
            tl.store(p_all + o_v, b_o)
            tl.debug_barrier()
            p_arrived = p_arrivals + (row * TOKENS + j) * V_HEADS + head
            if tl.atomic_add(p_arrived, 1, sem="acq_rel") == PARTS - 1:
                b_all = tl.load(p_all + o_k, cache_modifier=".cg")
                _store_normed(p_o, p_oq, p_os, p_z, p_norm, b_all, eps, DIM, WIDTH, IS_SPLIT)
                tl.store(p_arrived, 0)
        b_s = _updated(b_s, b_k, b_u, b_decay)
        if j + 1 == STORED:
            tl.store(p_s, b_s, eviction_policy="evict_first")
        else:
            p_update = p_ring + (j - STORED) * RING_WIDTH
            tl.store(p_update + o_k, b_k)
            tl.store(p_update + DIM + tl.arange(0, COLUMNS), b_u)
            tl.store(p_update + DIM + COLUMNS, b_decay)


@triton.jit
def _updated(b_s, b_k, b_u, b_decay):
    b_ku = b_k[:, None] * b_u[None, :]
    return tl.fma(b_s, tl.broadcast_to(b_decay, b_s.shape), b_ku)


@triton.jit
def _store_normed(
    p_out,
    p_q,
    p_s,
    p_z,
    p_norm,
    b_o,
    eps,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    IS_SPLIT: tl.constexpr,
):
    """Gated RMS norm of one head's output b_o [DIM]."""
    o_v = tl.arange(0, DIM)
    b_z = tl.load(p_z + o_v).to(tl.float32)
    b_o *= tl.rsqrt(tl.sum(b_o * b_o, 0) / DIM + eps) * tl.load(p_norm + o_v)
    b_o *= b_z * tl.sigmoid(b_z)
    b_out = b_o.to(p_out.dtype.element_ty)
    tl.store(p_out + o_v, b_out)
    if IS_SPLIT:
        store_group(b_out.to(tl.float32), p_q + o_v, p_s, o_v < DIM, WIDTH)
