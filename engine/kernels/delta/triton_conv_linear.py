# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""DeltaNet's input projection of decode rows, with the causal conv of its first channels.

    y = x wᵀ;   for the channels c:   y_c <- silu(taps_c . [history_c, y_c]),
    history_c <- [its last two, what y_c was]

A channel's conv does not depend on other channels, so the program that computes a band of the
projection convolves it too: a conv kernel of its own would lengthen the chain of kernels, and need
another round trip of the activations.

The history advances only by a row's certain tokens, the first one or none. The ring (state_ring.py)
keeps the inputs of the others, and the next step begins behind the accepted ones.

Reference: torch_conv.conv_decode, torch_drafts.conv_drafts; test:
tests/kernels/delta/test_delta.py, test_drafts.py.
"""

import torch
import triton
import triton.language as tl

from engine.cache.state_ring import StateRing
from engine.kernels.dense.triton_linear import linear, operands, tiles_of
from engine.kernels.dense.triton_rows import Tiles, band_of, prefetch_rows, rows_product
from engine.kernels.formats.triton_quantise import Prepared, Quantised
from engine.kernels.triton_overlap import overlap, wait_for_inputs
from engine.model.matrix import Matrix

MAX_FUSED = 16
"""The most rows with a fused conv: with more, a conv kernel of its own costs less than its loads
cost the projection."""

HISTORY = 3
"""Number of inputs that the conv of kernel size 4 keeps."""


@triton.jit
def _history(p_state, b_slots, channels, slot_stride):
    """The addresses of the history of [rows, channels], and its three inputs, oldest first."""
    p_h = p_state + tl.maximum(b_slots, 0)[:, None] * slot_stride + channels[None, :] * 3
    live = (b_slots >= 0)[:, None]
    b_h0 = tl.load(p_h, mask=live, other=0.0)
    b_h1 = tl.load(p_h + 1, mask=live, other=0.0)
    return p_h, b_h0, b_h1, tl.load(p_h + 2, mask=live, other=0.0)


@triton.jit
def _taps(p_taps, channels):
    """The four taps [1, channels], the oldest input's first."""
    p_w = p_taps + channels[None, :] * 4
    return tl.load(p_w), tl.load(p_w + 1), tl.load(p_w + 2), tl.load(p_w + 3)


@triton.jit
def _convolve(b_x, b_taps, b_h0, b_h1, b_h2):
    """silu(taps . [history, x]), rounded like x."""
    b_y = b_h0.to(tl.float32) * b_taps[0].to(tl.float32)
    b_y += b_h1.to(tl.float32) * b_taps[1].to(tl.float32)
    b_y += b_h2.to(tl.float32) * b_taps[2].to(tl.float32)
    b_y += b_x.to(tl.float32) * b_taps[3].to(tl.float32)
    return (b_y * tl.sigmoid(b_y)).to(b_x.dtype)


@triton.jit
def _store_history(p_h, b_h0, b_h1, b_h2, live):
    # NOTE: copies of a channel, and of the ring, may be loaded by several threads: all load before
    # any stores.
    tl.debug_barrier()
    tl.store(p_h, b_h0, mask=live)
    tl.store(p_h + 1, b_h1, mask=live)
    tl.store(p_h + 2, b_h2, mask=live)


@triton.jit
def _behind_pending(p_ring, b_pending, b_h0, b_h1, b_h2, live, CHANNELS: tl.constexpr, RING):
    """The history after the pending entries of the last step."""
    for i in tl.static_range(RING):
        moves = live & (b_pending > i)[:, None]
        b_x = tl.load(p_ring + i * CHANNELS, mask=moves, other=0.0)
        b_h0 = tl.where(moves, b_h1, b_h0)
        b_h1 = tl.where(moves, b_h2, b_h1)
        b_h2 = tl.where(moves, b_x, b_h2)
    return b_h0, b_h1, b_h2


@triton.jit(do_not_specialize=["num_tokens"])
def _conv_linear_kernel(
    p_x,
    p_q,
    p_s,
    p_fp8,
    p_scales,
    p_w,
    p_y,
    p_taps,
    p_state,
    p_slots,
    p_ring,
    p_pending,
    num_tokens,
    num_rows,
    stride_x,
    stride_y,
    slot_stride,
    ring_slot_stride,
    FP8_ROWS: tl.constexpr,
    PACKED: tl.constexpr,
    HAS_PLAIN: tl.constexpr,
    K: tl.constexpr,
    CHANNELS: tl.constexpr,
    TOKENS: tl.constexpr,
    STORED: tl.constexpr,
    RING: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
    FP8_STAGES: tl.constexpr,
    WEIGHTS_FIRST: tl.constexpr,
    FP8_UNROLLED: tl.constexpr,
    IS_SPLIT: tl.constexpr,
    PREFETCHED: tl.constexpr,
    PDL: tl.constexpr,
):
    """Project a band of rows of the weights, and convolve it. Each sequence has TOKENS tokens; the
    first STORED go to the history. A ring has RING entries."""
    band = band_of(tl.program_id(0), tl.num_programs(0), FP8_ROWS, BLOCK_N)
    rows = band + tl.arange(0, BLOCK_N)
    tokens = tl.arange(0, BLOCK_T)
    in_batch = tokens < num_tokens
    prefetch_rows(
        p_fp8, p_scales, p_w, band, num_rows,
        FP8_ROWS, PACKED, HAS_PLAIN, K, BLOCK_N, PREFETCHED, PDL,
    )  # fmt: skip
    b_slots = tl.load(p_slots + tokens // TOKENS, mask=in_batch, other=-1).to(tl.int64)
    live = (b_slots >= 0)[:, None]
    channels = tl.minimum(rows, CHANNELS - 1)
    b_taps = _taps(p_taps, channels)
    # No earlier kernel of this step has written history, ring or ``p_pending``.
    p_h, b_h0, b_h1, b_h2 = _history(p_state, b_slots, channels, slot_stride)
    if RING > 0:
        p_ring += tl.maximum(b_slots, 0)[:, None] * ring_slot_stride + channels[None, :]
        b_pending = tl.load(p_pending + b_slots, mask=b_slots >= 0, other=0)
        b_h0, b_h1, b_h2 = _behind_pending(
            p_ring, b_pending, b_h0, b_h1, b_h2, live, CHANNELS, RING
        )
    wait_for_inputs(PDL)
    b_y = rows_product(
        p_x, p_q, p_s, stride_x, 0, num_tokens, p_fp8, p_scales, p_w, band, num_rows,
        FP8_ROWS, PACKED, HAS_PLAIN, K, K, BLOCK_T, BLOCK_N, BLOCK_K, STAGES, FP8_STAGES,
        WEIGHTS_FIRST, FP8_UNROLLED, IS_SPLIT, False,
    ).to(p_y.dtype.element_ty)  # fmt: skip
    p_y += tokens[:, None] * stride_y + rows[None, :]
    stored = in_batch[:, None] & (rows < num_rows)[None, :]
    if band < CHANNELS:
        b_x, b_x0, b_x1, b_x2 = b_y, b_h0, b_h1, b_h2
        place = (tokens % TOKENS)[:, None]
        if TOKENS > 1:
            # A draft's inputs are the tokens before it, which other threads may hold.
            tl.store(p_y, b_x, mask=stored)
            tl.debug_barrier()
            b_1 = tl.load(p_y - stride_y, mask=stored & (place >= 1), other=0.0)
            b_2 = tl.load(p_y - 2 * stride_y, mask=stored & (place >= 2), other=0.0)
            b_3 = tl.load(p_y - 3 * stride_y, mask=stored & (place >= 3), other=0.0)
            b_x2 = tl.where(place >= 1, b_1, b_h2)
            b_x1 = tl.where(place >= 2, b_2, tl.where(place == 1, b_h2, b_h1))
            b_x0 = tl.where(place == 1, b_h1, tl.where(place == 2, b_h2, b_h0))
            b_x0 = tl.where(place >= 3, b_3, b_x0)
        b_y = _convolve(b_x, b_taps, b_x0, b_x1, b_x2)
        if STORED == 0:
            _store_history(p_h, b_h0, b_h1, b_h2, live & (place == 0))
        else:
            _store_history(p_h, b_h1, b_h2, b_x, live & (place == 0))
        if TOKENS > STORED:
            p_entry = p_ring + (place - STORED) * CHANNELS
            tl.store(p_entry, b_x, mask=live & (place >= STORED))
    tl.store(p_y, b_y, mask=stored)


@triton.jit
def _conv_kernel(
    p_y,
    p_taps,
    p_state,
    p_slots,
    p_ring,
    p_pending,
    stride_y,
    slot_stride,
    ring_slot_stride,
    CHANNELS: tl.constexpr,
    TOKENS: tl.constexpr,
    STORED: tl.constexpr,
    HAS_RING: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PDL: tl.constexpr,
):
    """Convolve BLOCK_N channels of one row's TOKENS tokens in place; the first STORED go to the
    history."""
    channels = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    row = tl.program_id(1) + tl.arange(0, 1)
    b_taps = _taps(p_taps, channels)
    wait_for_inputs(PDL)
    b_slots = tl.load(p_slots + row).to(tl.int64)
    p_h, b_h0, b_h1, b_h2 = _history(p_state, b_slots, channels, slot_stride)
    live = (b_slots >= 0)[:, None]
    p_ring += tl.maximum(b_slots, 0)[:, None] * ring_slot_stride + channels[None, :]
    if HAS_RING:
        slot = tl.load(p_slots + tl.program_id(1))
        num_pending = tl.load(p_pending + slot, mask=slot >= 0, other=0)
        for i in range(num_pending):
            b_h0, b_h1, b_h2 = b_h1, b_h2, tl.load(p_ring + i * CHANNELS)
    p_y += (row.to(tl.int64) * TOKENS)[:, None] * stride_y + channels[None, :]
    if STORED == 0:
        _store_history(p_h, b_h0, b_h1, b_h2, live)
    for j in tl.static_range(TOKENS):
        b_x = tl.load(p_y + j * stride_y)
        tl.store(p_y + j * stride_y, _convolve(b_x, b_taps, b_h0, b_h1, b_h2))
        if j + 1 == STORED:
            _store_history(p_h, b_h1, b_h2, b_x, live)
        else:
            tl.store(p_ring + (j - STORED) * CHANNELS, b_x, mask=live)
        b_h0, b_h1, b_h2 = b_h1, b_h2, b_x


def conv_linear(
    x: torch.Tensor,
    w: Matrix,
    taps: torch.Tensor,
    conv_state: torch.Tensor,
    state_slots: torch.Tensor,
    ring: StateRing | None = None,
    num_stored: int = 1,
    *,
    prepared: Prepared | None = None,
    tiles: Tiles | None = None,
) -> torch.Tensor:
    """``x @ w.T`` [tokens, width], its first ``channels`` columns convolved.

    x [tokens, k], equally many tokens for each row, adjacent. w [width, k]; taps [channels, 4];
    conv_state [state slots, channels, 3] (one layer's view), advanced in place at ``state_slots``
    (int32 [rows], -1: none, and the row is undefined) by pending entries of the ``ring`` and by a
    row's first ``num_stored`` tokens, 0 or 1; further tokens need a ring. Two rows must not share
    a slot. ``prepared``: as in ``triton_linear.linear``.
    """
    (num_tokens, k), (width, channels) = x.shape, (w.shape[0], taps.shape[0])
    num_rows = state_slots.shape[0]
    assert w.shape == (width, k)
    assert taps.shape[1] == HISTORY + 1, taps.shape
    assert conv_state.shape[1:] == (channels, HISTORY), conv_state.shape
    assert conv_state.stride()[1:] == (HISTORY, 1), conv_state.stride()
    assert num_tokens % num_rows == 0, (num_tokens, num_rows)
    tokens_each = num_tokens // num_rows
    assert num_stored in (0, 1), num_stored
    assert ring is not None or tokens_each == num_stored, "tokens behind the state without a ring"
    assert all(t.is_contiguous() for t in (taps, state_slots))
    assert x.stride(1) == 1
    inputs, pending, num_entries = taps, state_slots, 0
    if ring is not None:
        inputs, pending, num_entries = ring.inputs, ring.pending, ring.inputs.shape[1]
        assert num_entries >= tokens_each - num_stored, (inputs.shape, num_tokens)
        assert inputs.stride()[1:] == (channels, 1), inputs.stride()
        assert inputs.dtype == x.dtype, inputs.dtype
    if num_tokens > MAX_FUSED:
        y = linear(x, w, prepared)
        block = min(512, channels)
        assert channels % block == 0, channels
        _conv_kernel[(channels // block, num_rows)](
            y, taps, conv_state, state_slots, inputs, pending,
            y.stride(0), conv_state.stride(0), inputs.stride(0),
            CHANNELS=channels, TOKENS=tokens_each, STORED=num_stored, HAS_RING=num_entries > 0,
            BLOCK_N=block, num_warps=4, **overlap(y),
        )  # fmt: skip
        return y
    assert not isinstance(prepared, Quantised)
    assert prepared is None or (w.num_fp8 and prepared.is_of_rows(x))
    tiles = tiles or tiles_of(num_tokens, w, 1, prepared is not None)
    assert channels % tiles.rows == 0, (channels, tiles)
    padded = triton.cdiv(width, 16) * 16
    y = torch.empty((num_tokens, padded), dtype=x.dtype, device=x.device)
    block_t = max(16, triton.next_power_of_2(num_tokens))
    _conv_linear_kernel[(triton.cdiv(width, tiles.rows),)](
        x,
        *operands(x, w, prepared),
        y,
        taps,
        conv_state,
        state_slots,
        inputs,
        pending,
        num_tokens,
        width,
        x.stride(0),
        y.stride(0),
        conv_state.stride(0),
        inputs.stride(0),
        CHANNELS=channels,
        TOKENS=tokens_each,
        STORED=num_stored,
        RING=num_entries,
        IS_SPLIT=prepared is not None,
        BLOCK_T=block_t,
        **tiles.arguments(w, k, block_t),
        **overlap(x),
    )
    return y[:, :width]
