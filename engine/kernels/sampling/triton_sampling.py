"""Draws each row's token: argmax of the logits, or of logits / temperature + Gumbel noise.

    noise(id) = -log(-log(u)),   u from Philox4x32-10 of (seed, position, id)   (philox.py)

The first kernel takes a run of ids of one row and keeps its best value and lowest such id; the
second takes the best run, so the length of runs changes nothing. A greedy row draws no noise. The
random words are philox.py's bit for bit; the logarithm is correct to 0.85 ulp, so noise may differ
from another library's in the last bit.

Reference: philox.gumbel_noise, engine/sampling/sampler.py; test:
tests/kernels/sampling/test_sampling.py.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from engine.kernels.sampling.philox import NOISE_STREAM

STREAM = tl.constexpr(NOISE_STREAM)
TILE = 2048
"""Number of ids that a program takes at a time."""


@dataclass(frozen=True)
class SamplingWorkspace:
    """Scratch memory of ``draw``; calls on one stream may share it. Both are [rows, runs]."""

    values: torch.Tensor
    ids: torch.Tensor

    @classmethod
    def allocate(cls, max_rows: int, num_ids: int, device: torch.device) -> "SamplingWorkspace":
        shape = (max_rows, triton.cdiv(num_ids, TILE))
        return cls(
            torch.empty(shape, device=device), torch.empty(shape, dtype=torch.int32, device=device)
        )


def draw(
    logits: torch.Tensor,
    num_valid_ids: int,
    temperatures: torch.Tensor,
    seeds: torch.Tensor,
    state_slots: torch.Tensor,
    positions: torch.Tensor,
    workspace: SamplingWorkspace,
    *,
    next_token: torch.Tensor | None = None,
    lowest: torch.Tensor | None = None,
    on_host: torch.Tensor | None = None,
    tiles_each: int = 0,
    num_warps: int = 8,
) -> torch.Tensor:
    """Draw a token per row -> ids int64 [rows], -1 where a valid id's logit is NaN or infinite.

    logits [rows, ids] float32; only the first ``num_valid_ids`` count (there must
    be as many, rounded up to a multiple of 4). temperatures (float32, 0 is greedy) and seeds
    (int64) are columns [state slots] of the settings' tables;
    state_slots [rows]; positions int64 [rows] is the index that each new token will have. Where
    given, ``next_token`` int64 [state slots] receives the choice, also of rows that yield -1;
    ``lowest`` float32 [rows] drops ids whose logit / temperature is below it (not of greedy rows),
    and -inf logits are then no error. Rows whose slot is -1 yield -1 and write nothing else.
    ``on_host`` int64 [rows], pinned, gets the ids too: a copy behind the kernels would cost the
    stream 14 us.
    """
    num_rows, num_ids = logits.shape
    tiles_each = tiles_each or (1 if num_rows <= 8 else 8)
    num_runs = triton.cdiv(num_valid_ids, TILE * tiles_each)
    assert 0 < num_valid_ids <= num_ids, (num_valid_ids, num_ids)
    assert logits.dtype == torch.float32, logits.dtype
    assert logits.stride(1) == 1, logits.stride()
    assert triton.cdiv(num_valid_ids, 4) * 4 <= num_ids, (num_valid_ids, num_ids)
    assert positions.dtype == seeds.dtype == torch.int64, (positions.dtype, seeds.dtype)
    assert temperatures.dtype == torch.float32, temperatures.dtype
    assert state_slots.shape == positions.shape == (num_rows,), (state_slots.shape, num_rows)
    assert workspace.values.shape[0] >= num_rows, workspace.values.shape
    assert workspace.values.shape[1] >= num_runs, (workspace.values.shape, num_runs)
    assert state_slots.is_contiguous()
    assert positions.is_contiguous()
    assert lowest is None or lowest.is_contiguous()
    if on_host is not None:
        assert on_host.dtype == torch.int64, on_host.dtype
        assert on_host.shape == (num_rows,), (on_host.shape, num_rows)
        assert on_host.is_contiguous()
    ids = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    if num_rows == 0:
        return ids
    run_stride = workspace.values.stride(0)
    _run_kernel[(num_runs, num_rows)](
        logits, temperatures, seeds, state_slots, positions,
        temperatures if lowest is None else lowest, workspace.values, workspace.ids,
        logits.stride(0), temperatures.stride(0), seeds.stride(0), run_stride, num_valid_ids,
        TILE=TILE, TILES=tiles_each, FILTERED=lowest is not None, num_warps=num_warps,
    )  # fmt: skip
    _pick_kernel[(num_rows,)](
        workspace.values, workspace.ids, state_slots, ids,
        ids if next_token is None else next_token, ids if on_host is None else on_host,
        run_stride, num_runs, num_valid_ids,
        RUNS=triton.next_power_of_2(num_runs), FEED=next_token is not None,
        ON_HOST=on_host is not None, num_warps=1,
    )  # fmt: skip
    return ids


@triton.jit
def philox(b_0, b_1, b_2, b_3, k_0, k_1):
    """Four random words (uint32) of counters b_0 … b_3 under key (k_0, k_1)."""
    for _ in tl.static_range(10):
        first, third = b_0, b_2
        b_0 = tl.umulhi(third, tl.full([], 0xCD9E8D57, tl.uint32)) ^ b_1 ^ k_0
        b_1 = third * tl.full([], 0xCD9E8D57, tl.uint32)
        b_2 = tl.umulhi(first, tl.full([], 0xD2511F53, tl.uint32)) ^ b_3 ^ k_1
        b_3 = first * tl.full([], 0xD2511F53, tl.uint32)
        k_0 += tl.full([], 0x9E3779B9, tl.uint32)
        k_1 += tl.full([], 0xBB67AE85, tl.uint32)
    return b_0, b_1, b_2, b_3


@triton.jit
def to_uniform(b_word):
    """philox.to_uniform: the high 23 bits as a float in [1, 2); what follows is exact."""
    b_u = ((b_word >> 9) | 0x3F800000).to(tl.float32, bitcast=True)
    return (b_u - 1.0) + 5.9604644775390625e-08


@triton.jit
def _log(b_x):
    """Natural log of positive normal floats to 0.85 ulp.

    tl.log is approximate, and worst near 1: at the largest u, whose noise decides the draw.
    """
    b_bits = b_x.to(tl.int32, bitcast=True)
    b_exponent = b_bits - 0x3F2AAAAB
    b_f = (b_bits - (b_exponent & -0x800000)).to(tl.float32, bitcast=True) - 1.0
    # The exponent as a float, without a slow conversion: 0x4B400000 is 1.5 * 2^23.
    b_e = ((b_exponent >> 23) + 0x4B400000).to(tl.float32, bitcast=True) - 12582912.0
    b_s = b_f * b_f
    b_r = tl.fma(b_s, -0.130310059, -0.121483512)
    b_t = tl.fma(b_s, 0.140869141, 0.139814854)
    b_r = tl.fma(b_r, b_s, -0.166846126)
    b_t = tl.fma(b_t, b_s, 0.200120345)
    b_r = tl.fma(b_r, b_s, -0.249996200)
    b_r = tl.fma(b_t, b_f, b_r)
    b_r = tl.fma(b_r, b_f, 0.333331972)
    b_r = tl.fma(b_r, b_f, -0.5)
    b_r = tl.fma(b_r, b_s, b_f)
    return tl.fma(b_e, 0.693147182, b_r)


@triton.jit
def _logits(p_logits, tile, num_valid_ids, TILE: tl.constexpr):
    """Logits [TILE / 4, 4] of a tile; past the valid ids a finite number that never wins."""
    o_id = tile * TILE + tl.arange(0, TILE // 4)[:, None] * 4 + tl.arange(0, 4)[None, :]
    if (tile + 1) * TILE <= num_valid_ids:
        b_value = tl.load(p_logits + o_id)
    else:
        b_value = tl.load(p_logits + o_id, mask=o_id < num_valid_ids, other=-3.3e38)
    return b_value


@triton.jit
def _run_kernel(
    p_logits,
    p_temperatures,
    p_seeds,
    p_slots,
    p_positions,
    p_lowest,
    p_values,
    p_ids,
    logits_stride,
    temperature_stride,
    seed_stride,
    run_stride,
    num_valid_ids,
    TILE: tl.constexpr,
    TILES: tl.constexpr,
    FILTERED: tl.constexpr,
):
    run, row = tl.program_id(0), tl.program_id(1)
    slot = tl.load(p_slots + row).to(tl.int64)
    if slot < 0:
        return
    BLOCKS: tl.constexpr = TILE // 4
    p_logits += row.to(tl.int64) * logits_stride
    temperature = tl.load(p_temperatures + slot * temperature_stride)
    inverse = tl.div_rn(1.0, temperature)
    seed = tl.load(p_seeds + slot * seed_stride)
    position = tl.load(p_positions + row)
    b_best = tl.full([BLOCKS, 4], float("-inf"), tl.float32)
    b_best_id = tl.full([BLOCKS, 4], 0x7FFFFFFF, tl.int32)
    b_bad = tl.zeros([BLOCKS, 4], tl.float32)
    b_next = _logits(p_logits, run * TILES, num_valid_ids, TILE)
    for tile in range(run * TILES, (run + 1) * TILES):
        b_value = b_next
        if TILES > 1:
            b_next = _logits(p_logits, tile + 1, num_valid_ids, TILE)
        o_block = tile * BLOCKS + tl.arange(0, BLOCKS)
        o_id = o_block[:, None] * 4 + tl.arange(0, 4)[None, :]
        # This stays 0 unless a logit is NaN or infinite.
        if FILTERED:
            b_bad += tl.where(b_value == float("-inf"), 0.0, b_value * 0.0)
        else:
            b_bad = tl.fma(b_value, 0.0, b_bad)
        if temperature != 0.0:
            # Correctly rounded b_value / temperature (Markstein), as the inverse is.
            b_ratio = b_value * inverse
            b_value = tl.fma(tl.fma(-b_ratio, temperature, b_value), inverse, b_ratio)
            if FILTERED:
                b_value = tl.where(b_value < tl.load(p_lowest + row), float("-inf"), b_value)
            b_0 = o_block.to(tl.uint32)
            b_zero = tl.zeros_like(b_0)
            b_0, b_1, b_2, b_3 = philox(
                b_0,
                b_zero + position.to(tl.uint32),
                b_zero + (position >> 32).to(tl.uint32),
                b_zero + STREAM,
                seed.to(tl.uint32),
                (seed >> 32).to(tl.uint32),
            )
            b_word = tl.reshape(tl.join(tl.join(b_0, b_2), tl.join(b_1, b_3)), [BLOCKS, 4])
            b_value -= _log(-_log(to_uniform(b_word)))
        better = b_value > b_best
        b_best = tl.where(better, b_value, b_best)
        b_best_id = tl.where(better, o_id, b_best_id)
    best = tl.max(tl.max(b_best, 1), 0)
    best_id = tl.min(tl.min(tl.where(b_best == best, b_best_id, 0x7FFFFFFF), 1), 0)
    num_bad = tl.sum(tl.sum((b_bad != 0.0).to(tl.int32), 1), 0)
    # A negative id marks a run with a bad logit.
    p_run = row * run_stride + run
    tl.store(p_values + p_run, best)
    tl.store(p_ids + p_run, tl.where(num_bad > 0, -1 - best_id, best_id))


@triton.jit
def _pick_kernel(
    p_values,
    p_ids,
    p_slots,
    p_out,
    p_next_token,
    p_on_host,
    run_stride,
    num_runs,
    num_valid_ids,
    RUNS: tl.constexpr,
    FEED: tl.constexpr,
    ON_HOST: tl.constexpr,
):
    row = tl.program_id(0)
    slot = tl.load(p_slots + row).to(tl.int64)
    if slot < 0:
        tl.store(p_out + row, tl.full([], -1, tl.int64))
        if ON_HOST:
            tl.store(p_on_host + row, tl.full([], -1, tl.int64))
        return
    o_run = tl.arange(0, RUNS)
    m_run = o_run < num_runs
    b_value = tl.load(p_values + row * run_stride + o_run, mask=m_run, other=float("-inf"))
    b_id = tl.load(p_ids + row * run_stride + o_run, mask=m_run, other=0x7FFFFFFF)
    num_bad = tl.sum((b_id < 0).to(tl.int32), 0)
    b_id = tl.where(b_id < 0, -1 - b_id, b_id)
    best = tl.max(b_value, 0)
    best_id = tl.min(tl.where(b_value == best, b_id, 0x7FFFFFFF), 0).to(tl.int64)
    # If all logits are NaN or -inf, no id has won, or an id past the valid ids. The next step
    # embeds the fed id, so it must be valid.
    best_id = tl.where(best_id < num_valid_ids, best_id, 0)
    if FEED:
        tl.store(p_next_token + slot, best_id)
    id = tl.where(num_bad > 0, -1, best_id)
    tl.store(p_out + row, id)
    if ON_HOST:
        tl.store(p_on_host + row, id)
