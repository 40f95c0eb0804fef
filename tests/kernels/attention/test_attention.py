"""Attention kernels against plain PyTorch, at odd shapes; unwritten memory is NaN."""

import pytest
import torch

from engine.inputs import Rows
from engine.kernels.attention import torch_attention
from engine.kernels.attention.triton_attention_decode import AttentionWorkspace, attention_decode
from engine.kernels.attention.triton_attention_prefill import attention_prefill
from engine.kernels.attention.triton_rope_cache import cache_kv, rope_cache
from engine.kernels.batch.triton_prefill_plan import HostPlan, PrefillPlan
from engine.kernels.dense import torch_norm
from engine.kernels.formats.triton_split import Split, split_rows
from tests.kernels.closeness import relative_error, same_split

HEADS, KV_HEADS, DIM, PAGE, EPS, LAYER = 8, 2, 32, 16, 1e-6, 1
# The GPU multiplies float32 tiles in tf32.
BOUND = {torch.float32: 2e-3 if torch.cuda.is_available() else 1e-4, torch.bfloat16: 8e-3}


class Cache:
    """Pages of rows with a random prefix, everything else NaN, and a pass over new tokens."""

    def __init__(
        self, starts: list[int], lens: list[int], dtype: torch.dtype, device: torch.device
    ) -> None:
        ends = [start + length for start, length in zip(starts, lens, strict=True)]
        counts = [-(-end // PAGE) for end in ends]
        pages = torch.randperm(sum(counts) + 2)
        tables = torch.zeros(len(ends), max(counts) + 1, dtype=torch.int64)
        used = 0
        for row, count in enumerate(counts):
            tables[row] = pages[used]
            tables[row, :count] = pages[used : used + count]
            used += count
        self.dtype, self.device = dtype, device
        self.rows = Rows(
            torch.arange(len(ends), device=device),
            torch.tensor(ends, device=device),
            tables.to(device),
            tuple(starts),
            tuple(lens),
            PAGE,
            2 * 2 * PAGE,
        )
        self.kv = torch.full(
            (len(pages), 2, 2, PAGE, KV_HEADS, DIM), float("nan"), dtype=dtype, device=device
        )
        for rows in torch_attention.layer_rows(self.kv, LAYER):
            for i, start in enumerate(starts):
                old = self.rows.context_rows[i, :start]
                rows[old] = torch.randn(start, KV_HEADS, DIM, device=device).to(dtype)
        self.weight = torch.rand(KV_HEADS + HEADS, DIM, device=device) + 0.5
        self.inv_freq = 1e7 ** -(torch.arange(4, device=device) / 4)
        positions = [p for s, e in zip(starts, ends, strict=True) for p in range(s, e)]
        self.positions = torch.tensor(positions, device=device)
        width = 2 * (HEADS + KV_HEADS) * DIM
        self.projected = torch.randn(len(positions), width, device=device).to(dtype)

    @property
    def gate(self) -> torch.Tensor:
        return self.projected[:, (2 * KV_HEADS + HEADS) * DIM :]

    def roped(self, plan: PrefillPlan) -> torch.Tensor:
        """q of a prefill pass, whose k and v are written into the pages."""
        return rope_cache(
            self.projected, self.weight, self.inv_freq, self.positions, plan.token_rows,
            self.rows.block_tables, self.kv, LAYER, EPS,
        )  # fmt: skip

    def truth(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """-> gated output, the pages after it, and q."""
        x = self.projected.view(len(self.positions), -1, DIM)
        v, kq, gate = x.split_with_sizes((KV_HEADS, KV_HEADS + HEADS, HEADS), 1)
        rope = torch_norm.rope_table(self.positions, self.inv_freq)
        kq = torch_norm.norm_rope(kq, self.weight, rope, EPS)
        kv = self.kv.clone()
        k_rows, v_rows = torch_attention.layer_rows(kv, LAYER)
        k_rows[self.rows.new_rows], v_rows[self.rows.new_rows] = kq[:, :KV_HEADS], v
        decode = max(self.rows.lens) == 1
        attend = torch_attention.attend_decode if decode else torch_attention.attend_prefill
        q = kq[:, KV_HEADS:]
        out = attend(q.float(), k_rows.float(), v_rows.float(), self.rows)
        return (out * gate.float().sigmoid()).flatten(1), kv, q


def same_pages(kv: torch.Tensor, truth: torch.Tensor) -> bool:
    return torch.allclose(kv.float(), truth.float(), rtol=8e-3, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_programs", [1, 3])
@pytest.mark.parametrize("splits", [False, True])
def test_decode(dtype: torch.dtype, num_programs: int, splits: bool, device: torch.device) -> None:
    cache = Cache([0, 15, 16, 77], [1, 1, 1, 1], dtype, device)
    truth, pages, true_q = cache.truth()
    ends = torch.cat((cache.rows.ends, cache.rows.ends.new_zeros(1))).int()
    tables = torch.cat((cache.rows.block_tables, cache.rows.block_tables[:1] + 10**6)).int()
    projected = torch.cat((cache.projected, torch.full_like(cache.projected[:1], float("nan"))))
    q = rope_cache(
        projected, cache.weight, cache.inv_freq, ends - 1, None, tables, cache.kv, LAYER, EPS
    )
    assert same_pages(cache.kv, pages)
    assert relative_error(q[:-1], true_q) < BOUND[dtype]
    assert not q[-1].any()
    workspace = AttentionWorkspace.allocate(5, HEADS, DIM, device)
    workspace.partials.fill_(float("nan"))
    workspace.stats.fill_(float("nan"))
    gate = projected[:, (2 * KV_HEADS + HEADS) * DIM :]
    gate[-1] = 0.0
    split = Split.empty(5, HEADS * DIM, HEADS, device) if splits else None
    out = attention_decode(
        q, gate, cache.kv, LAYER, tables, ends, workspace,
        split=split, num_programs=num_programs, block=16,
    )  # fmt: skip
    assert relative_error(out[:-1], truth) < BOUND[dtype]
    assert not out[-1].any()
    if split is not None:
        assert same_split(split, split_rows(out, HEADS))
        split = Split(split.q[3:4], split.s[3:4])
    # Alone, by as many programs as there may be: the same bits.
    alone = attention_decode(
        q[3:4], gate[3:4], cache.kv, LAYER, tables[3:4], ends[3:4], workspace,
        split=split, block=16,
    )  # fmt: skip
    assert torch.equal(alone[0], out[3])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_prefill(dtype: torch.dtype, device: torch.device) -> None:
    cache = Cache([0, 31, 5, 64], [37, 1, 18, 16], dtype, device)
    truth, pages, _ = cache.truth()
    plan = PrefillPlan.of(cache.rows.starts, cache.rows.lens, device, tile_len=8)
    q = cache.roped(plan)
    assert same_pages(cache.kv, pages)
    out = attention_prefill(q, cache.gate, cache.kv, LAYER, cache.rows.block_tables, plan)
    assert relative_error(out, truth) < BOUND[dtype]


def test_prefill_with_the_context_shared_out(device: torch.device) -> None:
    """Among one to eight programs a tile; a tile that one program computes has the same bits."""
    cache = Cache([0, 150, 5, 640, 64], [37, 1, 18, 9, 16], torch.bfloat16, device)
    truth, _, _ = cache.truth()
    plan = PrefillPlan.of(cache.rows.starts, cache.rows.lens, device, tile_len=8)
    q = cache.roped(plan)
    tables = cache.rows.block_tables
    whole = attention_prefill(q, cache.gate, cache.kv, LAYER, tables, plan)
    shared = attention_prefill(q, cache.gate, cache.kv, LAYER, tables, plan, span=32, block=16)
    assert relative_error(shared, truth) < BOUND[torch.bfloat16]
    assert not torch.equal(shared, whole)
    few = attention_prefill(q, cache.gate, cache.kv, LAYER, tables, plan, span=10**6, block=16)
    assert torch.equal(shared[38:56], few[38:56])
    assert not torch.equal(shared[56:65], few[56:65])


@pytest.mark.parametrize("num_tokens", [4, 200])
def test_k_and_v_alone_are_written_as_with_q(num_tokens: int, device: torch.device) -> None:
    starts, lens = ([0, 15, 16, 77], [1] * 4) if num_tokens == 4 else ([3, 0], [100, 100])
    cache = Cache(starts, lens, torch.bfloat16, device)
    token_rows = None
    if num_tokens > 4:
        token_rows = PrefillPlan.of(cache.rows.starts, cache.rows.lens, device).token_rows
    narrow, alone = cache.projected[:, : 2 * KV_HEADS * DIM].contiguous(), cache.kv.clone()
    shared = (
        cache.weight, cache.inv_freq, cache.positions, token_rows, cache.rows.block_tables,
    )  # fmt: skip
    rope_cache(cache.projected, *shared, cache.kv, LAYER, EPS)
    cache_kv(narrow, *shared, alone, LAYER, EPS)
    assert torch.equal(alone.view(torch.int16), cache.kv.view(torch.int16))


def test_padding_changes_nothing(device: torch.device) -> None:
    cache = Cache([0, 31, 64], [37, 1, 16], torch.bfloat16, device)
    before = cache.kv.clone()
    num_tokens, max_tokens, max_rows = 54, 128, 4
    host = HostPlan.of(cache.rows.starts, cache.rows.lens)
    far = torch.full((2, cache.rows.block_tables.shape[1]), 10**6, device=device)
    tables = torch.cat((cache.rows.block_tables, far))
    projected = cache.projected.new_full((max_tokens, cache.projected.shape[1]), float("nan"))
    projected[:num_tokens] = cache.projected
    positions = cache.positions.new_full((max_tokens,), -1)
    positions[:num_tokens] = cache.positions

    def run(length: int, plan: PrefillPlan) -> list[torch.Tensor]:
        cache.kv.copy_(before)
        q = rope_cache(
            projected[:length], cache.weight, cache.inv_freq, positions[:length],
            plan.token_rows, tables, cache.kv, LAYER, EPS,
        )  # fmt: skip
        gate = projected[:length, (2 * KV_HEADS + HEADS) * DIM :]
        out = attention_prefill(q, gate, cache.kv, LAYER, tables, plan)
        return [out[:num_tokens], cache.kv.clone().nan_to_num()]

    exact = run(num_tokens, PrefillPlan.upload(host, device, 16))
    padded = PrefillPlan.upload(host.padded(max_tokens, max_rows), device, 16)
    assert all(map(torch.equal, run(max_tokens, padded), exact))
