"""The smallest logit that long filters keep: top_k above SHORT_TOP_K or none, with top_p or min_p.

    x_i = logit_i / temperature,   weight_i = 1 for top_k, exp(x_i - max x) for top_p;
    sought: the largest logit_j such that all logit_i >= logit_j weigh a given amount

triton_threshold.py searches among a row's best ids, this among all. Instead of sorting them, the
first kernel finds the best one; the second weighs those whose x is less than 1 below it, less than
2, and so on; the third gathers the ids of the range in which the amount is reached; the fourth
searches among these. top_k comes first, and for top_p only its ids have a weight. Programs add
integers to each other's sums, so a result depends neither on their order nor on other rows.

Reference: torch_sampling.threshold; test: tests/kernels/sampling/test_long_threshold.py.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
import torch
import triton
import triton.language as tl

from engine.kernels.sampling.triton_sampling import _log
from engine.kernels.sampling.triton_threshold import _key, _value

TILE, SEARCHED = 4096, 2048
"""Number of ids per program, and that the search takes at a time."""
RANGES = tl.constexpr(16)
ONE = tl.constexpr(1 << 40)
"""Weight 1 as an integer: 2^22 ids weigh less than 2^63."""


def lowest_kept_of_all(
    logits: torch.Tensor,
    num_valid_ids: int,
    temperatures: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    state_slots: torch.Tensor,
    rows: torch.Tensor,
    lowest: torch.Tensor,
    *,
    any_top_k: bool,
    tile: int = TILE,
    num_warps: int = 4,
) -> None:
    """Write the smallest logit / temperature that the filters of ``rows`` keep into ``lowest``.

    logits [all rows, ids] float32; only the first ``num_valid_ids`` count. temperatures (not 0),
    top_p, min_p (float32) and top_k (int64) are columns [state slots] of the settings' tables,
    read by state_slots [all rows]; rows int64 [rows]; lowest float32 [all rows]. ``any_top_k`` may
    be False if no row has a top_k. NaN if a logit is NaN. Takes 4 bytes of memory for each id of
    ``rows``. Agrees with torch_sampling.threshold unless top_p or min_p is within rounding of a
    share.
    """
    num_rows, device = len(rows), logits.device
    assert logits.dtype == lowest.dtype == torch.float32, (logits.dtype, lowest.dtype)
    assert logits.stride(1) == 1, logits.stride()
    assert 0 < num_valid_ids <= logits.shape[1], (num_valid_ids, logits.shape)
    assert temperatures.dtype == top_p.dtype == min_p.dtype == torch.float32, top_p.dtype
    assert temperatures.stride() == top_p.stride() == min_p.stride(), top_p.stride()
    assert rows.dtype == top_k.dtype == torch.int64, (rows.dtype, top_k.dtype)
    assert rows.is_contiguous()
    assert state_slots.is_contiguous()
    assert lowest.shape == state_slots.shape == logits.shape[:1], (lowest.shape, logits.shape)
    assert lowest.is_contiguous()
    # Each of its own: pointers that are not aligned would be another variant of the kernels.
    best, last = (torch.zeros(num_rows, dtype=torch.int64, device=device) for _ in range(2))
    share = torch.ones(num_rows, device=device)
    found = torch.empty(num_rows, num_valid_ids, dtype=torch.int32, device=device)
    grid = triton.cdiv(num_valid_ids, tile), num_rows
    ids = logits, rows, logits.stride(0), num_valid_ids
    settings = temperatures, top_k, top_p, min_p, state_slots
    strides = temperatures.stride(0), top_k.stride(0)
    _best_kernel[grid](*ids, best, TILE=tile, num_warps=num_warps)
    for counted in (True, False) if any_top_k else (False,):
        sums = torch.zeros(num_rows, RANGES.value, dtype=torch.int64, device=device)
        num_found = torch.zeros(num_rows, dtype=torch.int32, device=device)
        args = *ids, *settings, *strides, best, last, share, sums
        each = {"TILE": tile, "COUNTED": counted, "num_warps": num_warps}
        _weigh_kernel[grid](*args, **each)
        _gather_kernel[grid](*args, num_found, found, **each)
        each |= {"TILE": min(tile, SEARCHED), "num_warps": 8}
        _search_kernel[(num_rows,)](*args, num_found, found, lowest, **each)


@triton.jit
def _keys(p_logits, p_rows, logits_stride, num_valid_ids, TILE: tl.constexpr):
    """The keys of this program's ids, 0 behind the last one."""
    row = tl.load(p_rows + tl.program_id(1))
    o_id = tl.program_id(0) * TILE + tl.arange(0, TILE)
    m_id = o_id < num_valid_ids
    b_logits = tl.load(p_logits + row * logits_stride + o_id, mask=m_id, other=0.0)
    return tl.where(m_id, _key(b_logits), 0)


@triton.jit
def _best_kernel(p_logits, p_rows, logits_stride, num_valid_ids, p_best, TILE: tl.constexpr):
    b_key = _keys(p_logits, p_rows, logits_stride, num_valid_ids, TILE)
    tl.atomic_max(p_best + tl.program_id(1), tl.max(b_key, 0).to(tl.int64))


@triton.jit
def _settings(
    place, num_valid_ids, p_rows,
    p_temperatures, p_top_k, p_top_p, p_min_p, p_slots, float_stride, top_k_stride, p_best,
    COUNTED: tl.constexpr,
):  # fmt: skip
    """A row's temperature, its best x, the smallest x that min_p keeps, and the limit: a number of
    ids, or a share of the weights; 0 if nothing is dropped, or an infinite best id stays alone."""
    slot = tl.load(p_slots + tl.load(p_rows + place)).to(tl.int64)
    temperature = tl.load(p_temperatures + slot * float_stride)
    min_p = tl.load(p_min_p + slot * float_stride)
    best = tl.div_rn(_value(tl.load(p_best + place).to(tl.uint32)), temperature)
    likely = tl.full([], float("-inf"), tl.float32)
    if min_p > 0.0:
        likely = best + _log(min_p)
    if COUNTED:
        top_k = tl.load(p_top_k + slot * top_k_stride)
        limit = tl.where(top_k < num_valid_ids, tl.maximum(top_k, 0), 0).to(tl.float64)
    else:
        top_p = tl.load(p_top_p + slot * float_stride)
        limit = tl.where(top_p < 1.0, tl.maximum(top_p, 1e-30), 0.0).to(tl.float64)
    return temperature, best, likely, tl.where(tl.abs(best) < float("inf"), limit, 0.0)


@triton.jit
def _weight(b_key, temperature, best, likely, last, share, COUNTED: tl.constexpr):
    """The weights of ids, float32; 0 of those that an earlier filter drops."""
    if COUNTED:
        return (b_key > 0).to(tl.float32)
    b_scaled = tl.div_rn(_value(b_key), temperature)
    # Of ids equal to top_k's last one, only as many have a share as there are places left.
    b_weight = tl.exp(b_scaled - best) * tl.where(b_key == last, share, 1.0)
    return tl.where((b_key > 0) & (b_key >= last) & (b_scaled >= likely), b_weight, 0.0)


@triton.jit
def _range(b_key, temperature, best):
    """The range of each id: how many whole units its x is below the best one's."""
    b_below = best - tl.div_rn(_value(b_key), temperature)
    return tl.minimum(tl.where(b_key > 0, b_below, 0.0), RANGES - 1.0).to(tl.int32)


@triton.jit
def _amount(b_sums, limit, COUNTED: tl.constexpr):
    """The weight to reach, an integer."""
    whole = tl.full([], ONE, tl.int64) if COUNTED else tl.sum(b_sums, 0)
    return tl.maximum((whole.to(tl.float64) * limit).to(tl.int64), 1)


@triton.jit
def _weigh_kernel(
    p_logits, p_rows, logits_stride, num_valid_ids,
    p_temperatures, p_top_k, p_top_p, p_min_p, p_slots, float_stride, top_k_stride,
    p_best, p_last, p_share, p_sums,
    TILE: tl.constexpr, COUNTED: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(1)
    temperature, best, likely, limit = _settings(
        place, num_valid_ids, p_rows, p_temperatures, p_top_k, p_top_p, p_min_p, p_slots,
        float_stride, top_k_stride, p_best, COUNTED,
    )  # fmt: skip
    if limit == 0.0:
        return
    last, share = tl.load(p_last + place).to(tl.uint32), tl.load(p_share + place)
    b_key = _keys(p_logits, p_rows, logits_stride, num_valid_ids, TILE)
    b_weight = _weight(b_key, temperature, best, likely, last, share, COUNTED)
    b_range = _range(b_key, temperature, best)
    for each in tl.static_range(RANGES):
        weight = tl.sum(tl.where(b_range == each, b_weight, 0.0), 0)
        if weight > 0.0:
            tl.atomic_add(p_sums + place * RANGES + each, (weight * ONE).to(tl.int64))


@triton.jit
def _gather_kernel(
    p_logits, p_rows, logits_stride, num_valid_ids,
    p_temperatures, p_top_k, p_top_p, p_min_p, p_slots, float_stride, top_k_stride,
    p_best, p_last, p_share, p_sums, p_num_found, p_found,
    TILE: tl.constexpr, COUNTED: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(1)
    temperature, best, likely, limit = _settings(
        place, num_valid_ids, p_rows, p_temperatures, p_top_k, p_top_p, p_min_p, p_slots,
        float_stride, top_k_stride, p_best, COUNTED,
    )  # fmt: skip
    if limit == 0.0:
        return
    b_sums = tl.load(p_sums + place * RANGES + tl.arange(0, RANGES))
    is_before = tl.cumsum(b_sums, 0) < _amount(b_sums, limit, COUNTED)
    last, share = tl.load(p_last + place).to(tl.uint32), tl.load(p_share + place)
    b_key = _keys(p_logits, p_rows, logits_stride, num_valid_ids, TILE)
    b_weight = _weight(b_key, temperature, best, likely, last, share, COUNTED)
    is_found = _range(b_key, temperature, best) == tl.sum(is_before.to(tl.int32), 0)
    is_found = is_found & (b_weight > 0.0)
    first = tl.atomic_add(p_num_found + place, tl.sum(is_found.to(tl.int32), 0))
    p_free = p_found + place.to(tl.int64) * num_valid_ids + first
    o_free = tl.cumsum(is_found.to(tl.int32), 0) - 1
    tl.store(p_free + o_free, b_key.to(tl.int32, bitcast=True), mask=is_found)


@triton.jit
def _search_kernel(
    p_logits, p_rows, logits_stride, num_valid_ids,
    p_temperatures, p_top_k, p_top_p, p_min_p, p_slots, float_stride, top_k_stride,
    p_best, p_last, p_share, p_sums, p_num_found, p_found, p_lowest,
    TILE: tl.constexpr, COUNTED: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0)
    temperature, best, likely, limit = _settings(
        place, num_valid_ids, p_rows, p_temperatures, p_top_k, p_top_p, p_min_p, p_slots,
        float_stride, top_k_stride, p_best, COUNTED,
    )  # fmt: skip
    last, share = tl.load(p_last + place).to(tl.uint32), tl.load(p_share + place)
    lowest = last
    if limit > 0.0:
        b_sums = tl.load(p_sums + place * RANGES + tl.arange(0, RANGES))
        amount, b_reached = _amount(b_sums, limit, COUNTED), tl.cumsum(b_sums, 0)
        amount -= tl.max(tl.where(b_reached < amount, b_reached, 0), 0)
        num_found = tl.load(p_num_found + place)
        p_found += place.to(tl.int64) * num_valid_ids
        b_low, b_high = tl.full([TILE], 0xFFFFFFFF, tl.uint32), tl.full([TILE], 0, tl.uint32)
        for first in range(0, num_found, TILE):
            b_key = _found(p_found, first, num_found, TILE)
            b_low = tl.minimum(b_low, tl.where(b_key > 0, b_key, 0xFFFFFFFF))
            b_high = tl.maximum(b_high, b_key)
        low, high = tl.min(b_low, 0), tl.max(b_high, 0)
        while low < high:
            middle = high - ((high - low) >> 1)
            b_sum = tl.full([TILE], 0, tl.int64)
            for first in range(0, num_found, TILE):
                b_key = _found(p_found, first, num_found, TILE)
                b_weight = _weight(b_key, temperature, best, likely, last, share, COUNTED)
                b_sum += tl.where(b_key >= middle, (b_weight * ONE).to(tl.int64), 0)
            reached = tl.sum(b_sum, 0)
            low = tl.where(reached >= amount, middle, low)
            # An exact hit ends the search early: the smallest key from there on is the answer.
            high = tl.where(reached > amount, high, tl.where(reached == amount, middle, middle - 1))
        b_lowest = tl.full([TILE], 0xFFFFFFFF, tl.uint32)
        for first in range(0, num_found, TILE):
            b_key = _found(p_found, first, num_found, TILE)
            b_lowest = tl.minimum(b_lowest, tl.where(b_key >= low, b_key, 0xFFFFFFFF))
        lowest = tl.min(b_lowest, 0)
        if COUNTED:
            b_above, b_equal = tl.full([TILE], 0, tl.int32), tl.full([TILE], 0, tl.int32)
            for first in range(0, num_found, TILE):
                b_key = _found(p_found, first, num_found, TILE)
                b_above += (b_key > lowest).to(tl.int32)
                b_equal += (b_key == lowest).to(tl.int32)
            num_left = (amount // ONE).to(tl.int32) - tl.sum(b_above, 0)
            tl.store(p_last + place, lowest.to(tl.int64))
            tl.store(p_share + place, num_left.to(tl.float32) / tl.sum(b_equal, 0).to(tl.float32))
    if not COUNTED:
        kept = tl.where(lowest > 0, tl.div_rn(_value(lowest), temperature), float("-inf"))
        kept = tl.maximum(kept, likely)
        # NaN drops nothing; the draw reports it.
        row = tl.load(p_rows + place)
        tl.store(p_lowest + row, tl.where(tl.abs(best) < float("inf"), kept, best))


@triton.jit
def _found(p_found, first, num_found, TILE: tl.constexpr):
    """A tile of the gathered keys, 0 behind the last one."""
    o_key = first + tl.arange(0, TILE)
    return tl.load(p_found + o_key, mask=o_key < num_found, other=0).to(tl.uint32, bitcast=True)
