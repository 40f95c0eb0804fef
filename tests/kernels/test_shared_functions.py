"""The functions that several Triton kernels share, each by itself against PyTorch."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
import pytest
import torch
import triton
import triton.language as tl

from engine.kernels import triton_dot
from engine.kernels.dense import triton_rows
from engine.kernels.experts import triton_expert_bands, triton_expert_tiles
from engine.kernels.experts.triton_plan import plan_both
from engine.kernels.formats import triton_fp8, triton_quantise, triton_split
from engine.model.matrix import FP8
from engine.spread import triton_collect

BF16 = torch.bfloat16


@triton.jit
def _dot_kernel(p_a, p_b, p_acc, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    o_m, o_n, o_k = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :], tl.arange(0, K)
    b_a, b_b = tl.load(p_a + o_m * K + o_k[None, :]), tl.load(p_b + o_k[:, None] * N + o_n)
    b_acc = tl.load(p_acc + o_m * N + o_n)
    tl.store(p_acc + o_m * N + o_n, triton_dot.dot(b_a, b_b, b_acc))


def test_dot(device: torch.device) -> None:
    a = torch.randn(16, 32, device=device).to(BF16)
    b = torch.randn(32, 64, device=device).to(BF16)
    acc = torch.randn(16, 64, device=device)
    expected = acc + a.float() @ b.float()
    _dot_kernel[(1,)](a, b, acc, M=16, N=64, K=32)
    torch.testing.assert_close(acc, expected, atol=1e-4, rtol=1e-4)


@triton.jit
def _widened_kernel(p_w, p_out, NUM: tl.constexpr):
    o_w = tl.arange(0, NUM)
    tl.store(p_out + o_w, triton_fp8.widened(tl.load(p_w + o_w)))


def test_widened(device: torch.device) -> None:
    numbers = torch.arange(256, dtype=torch.uint8, device=device).view(FP8)
    numbers = torch.where(numbers.float().isnan(), 0.0, numbers.float()).to(FP8)
    out = torch.empty(256, dtype=BF16, device=device)
    _widened_kernel[(1,)](numbers, out, NUM=256)
    assert torch.equal(out.float(), numbers.float())


@triton.jit
def _parts_kernel(p_x, p_s, p_first, p_second, NUM: tl.constexpr):
    o_x = tl.arange(0, NUM)
    b_x = tl.load(p_x + o_x)
    b_s, b_inverse = triton_split.power_of_two(tl.max(tl.abs(b_x), axis=0))
    b_first, b_second = triton_split.two_parts(b_x * b_inverse)
    tl.store(p_s, b_s)
    tl.store(p_first + o_x, b_first)
    tl.store(p_second + o_x, b_second)


@pytest.mark.parametrize("scale", [1e-6, 0.37, 1.0, 3e4])
def test_power_of_two_and_two_parts(scale: float, device: torch.device) -> None:
    x = (torch.randn(64, device=device) * scale).to(BF16).float()
    s = torch.empty(1, device=device)
    first, second = (torch.empty(64, dtype=FP8, device=device) for _ in range(2))
    _parts_kernel[(1,)](x, s, first, second, NUM=64)
    assert s.log2().frac() == 0
    assert 128 <= x.abs().max() / s < 256
    joined = s * (first.float() + second.float())
    assert torch.equal(joined[x.abs() >= x.abs().max() / 512], x[x.abs() >= x.abs().max() / 512])
    assert ((joined - x).abs() <= x.abs().max() * 2.0**-17).all()


@triton.jit
def _sum_kernel(p_y, p_out, M: tl.constexpr, T: tl.constexpr):
    o_m = tl.arange(0, M)[:, None]
    b_y = tl.load(p_y + o_m * (2 * T) + tl.arange(0, 2 * T)[None, :])
    b_out = triton_split.sum_of_parts(b_y, M, T)
    tl.store(p_out + o_m * T + tl.arange(0, T)[None, :], b_out)


def test_sum_of_parts(device: torch.device) -> None:
    y, out = torch.randn(4, 16, device=device), torch.empty(4, 8, device=device)
    _sum_kernel[(1,)](y, out, M=4, T=8)
    assert torch.equal(out, y.view(4, 8, 2).sum(-1))


@triton.jit
def _quantised_kernel(p_x, p_q, p_s, ROWS: tl.constexpr):
    o_r, o_c = tl.arange(0, ROWS), tl.arange(0, 128)[None, :]
    b_q, b_s = triton_quantise.quantised(tl.load(p_x + o_r[:, None] * 128 + o_c))
    tl.store(p_q + o_r[:, None] * 128 + o_c, b_q)
    tl.store(p_s + o_r, b_s)


def test_quantised(device: torch.device) -> None:
    x = torch.randn(4, 128, device=device)
    x[1] = 0.0
    q, s = torch.empty(4, 128, dtype=FP8, device=device), torch.empty(4, device=device)
    _quantised_kernel[(1,)](x, q, s, ROWS=4)
    amax = x.abs().amax(1).clamp_min(1e-12)
    torch.testing.assert_close(s, amax / 448.0)
    assert torch.equal(q.float(), (x * (448.0 / amax)[:, None]).clamp(-448, 448).to(FP8).float())


@triton.jit
def _bands_kernel(p_out, FP8_ROWS: tl.constexpr, BLOCK_N: tl.constexpr):
    program, num = tl.program_id(0), tl.num_programs(0)
    tl.store(p_out + program, triton_rows.band_of(program, num, FP8_ROWS, BLOCK_N))


@pytest.mark.parametrize("num_fp8", [0, 32, 64])
def test_band_of_covers_every_row_once_and_plain_rows_first(
    num_fp8: int, device: torch.device
) -> None:
    out = torch.empty(6, dtype=torch.int32, device=device)
    _bands_kernel[(6,)](out, FP8_ROWS=num_fp8, BLOCK_N=16)
    bands = out.tolist()
    assert sorted(bands) == [0, 16, 32, 48, 64, 80]
    plain = [band >= num_fp8 for band in bands]
    assert plain == sorted(plain, reverse=True)


@triton.jit
def _tokens_kernel(
    p_ids, p_expert, p_first, p_pairs, num_tokens,
    TOP_K: tl.constexpr, BLOCK_M: tl.constexpr, SINGLE: tl.constexpr,
):  # fmt: skip
    pair = tl.program_id(0)
    expert, is_first, b_pair = triton_expert_bands.all_tokens(
        p_ids, pair, num_tokens, TOP_K, BLOCK_M, SINGLE
    )
    tl.store(p_expert + pair, expert)
    tl.store(p_first + pair, is_first.to(tl.int32))
    tl.store(p_pairs + pair * BLOCK_M + tl.arange(0, BLOCK_M), b_pair)


@pytest.mark.parametrize("ids", [[[3, 1]], [[3, 1], [1, 0], [-1, 3]]])
def test_all_tokens(ids: list[list[int]], device: torch.device) -> None:
    chosen = torch.tensor(ids, dtype=torch.int32, device=device)
    expert, first = (torch.empty(chosen.numel(), dtype=torch.int32) for _ in range(2))
    expert, first = expert.to(device), first.to(device)
    pairs = torch.empty(chosen.numel(), 16, dtype=torch.int32, device=device)
    _tokens_kernel[(chosen.numel(),)](
        chosen, expert, first, pairs, len(ids), TOP_K=2, BLOCK_M=16, SINGLE=len(ids) == 1
    )
    flat = chosen.flatten().tolist()
    assert expert.tolist() == flat
    assert [bool(each) for each in first.tolist()] == [
        each >= 0 and flat.index(each) == pair for pair, each in enumerate(flat)
    ]
    for each, row in zip(flat, pairs.tolist(), strict=True):
        if each >= 0:
            assert sorted(p for p in row if p >= 0) == [p for p, e in enumerate(flat) if e == each]


@triton.jit
def _tiles_kernel(
    p_tiles, p_lists, p_counts, p_expert, p_row, p_pairs, num_tokens, num_tiles, NUM: tl.constexpr
):
    tile = tl.program_id(0)
    expert, start, row = triton_expert_tiles.tile_of(p_tiles, tile, num_tiles)
    if start < 0:
        return
    p_list, count = triton_expert_tiles.list_of(p_lists, p_counts, expert, num_tokens)
    tl.store(p_expert + tile, expert)
    tl.store(p_row + tile, row)
    b_pair = triton_expert_tiles.pairs_of(p_list, start, count, NUM)
    tl.store(p_pairs + tile * NUM + tl.arange(0, NUM), b_pair)


def test_tiles_of_experts_have_every_pair_once(device: torch.device) -> None:
    """In the order of experts, then of tokens; row: how many pairs come before the tile."""
    num_experts, num_pairs = 4, 4
    ids = torch.tensor([[0, 2], [2, 0], [2, -1], [0, 2], [2, 3], [3, 2]], dtype=torch.int32)
    ids = ids.to(device)
    lists, counts, plan, _ = plan_both(ids, num_experts, num_pairs, num_pairs)
    num_tiles = plan.shape[1]
    experts, rows = (torch.full((num_tiles,), -1, dtype=torch.int32) for _ in range(2))
    experts, rows = experts.to(device), rows.to(device)
    pairs = torch.full((num_tiles, num_pairs), -1, dtype=torch.int32, device=device)
    _tiles_kernel[(num_tiles,)](
        plan, lists, counts, experts, rows, pairs, len(ids), num_tiles, NUM=num_pairs
    )
    flat = ids.flatten().tolist()
    expected = sorted((each, pair) for pair, each in enumerate(flat) if each >= 0)
    found, before = [], 0
    for expert, row, tile in zip(experts.tolist(), rows.tolist(), pairs.tolist(), strict=True):
        if expert >= 0:
            assert row == before
            found += [(expert, pair) for pair in tile if pair >= 0]
            before = len(found)
    assert found == expected


@triton.jit
def _ranks_kernel(p_words, p_ranks, BLOCK_T: tl.constexpr, BLOCK_E: tl.constexpr):
    o_word = tl.arange(0, BLOCK_T)[:, None] * 2 + tl.arange(0, 2)[None, :]
    b_chosen = triton_collect.chosen_experts(tl.load(p_words + o_word), BLOCK_E)
    for expert in range(BLOCK_E):
        tl.store(p_ranks + expert, triton_collect.num_below(b_chosen, expert, BLOCK_E))


@pytest.mark.parametrize("num_experts", [32, 256, 512])
@pytest.mark.parametrize("num_chosen", [0, 1, 7, 200])
def test_ranks_of_chosen_experts(device: torch.device, num_experts: int, num_chosen: int) -> None:
    ids = torch.full((64, 8), 0xFFFF)
    ids.view(-1)[:num_chosen] = torch.randint(num_experts, (num_chosen,))
    ids = ids.view(-1)[torch.randperm(64 * 8)].view(64, 2, 4)
    words = (ids << torch.arange(0, 64, 16)).sum(-1)
    ranks = torch.empty(num_experts, dtype=torch.int32, device=device)
    _ranks_kernel[(1,)](words.to(device), ranks, BLOCK_T=64, BLOCK_E=num_experts)
    chosen = torch.zeros(num_experts, dtype=torch.int32)
    chosen[ids[ids < num_experts]] = 1
    assert torch.equal(ranks.cpu(), chosen.cumsum(0).int() - chosen)
