"""Attention without a gate or norms, with a bias, another scale, and groups of any number of heads,
against plain PyTorch; unwritten memory is NaN."""

from dataclasses import dataclass
from itertools import product

import pytest
import torch

from engine.inputs import Rows
from engine.kernels.attention import torch_attention, triton_rope_cache
from engine.kernels.attention.torch_attention import Span
from engine.kernels.attention.triton_attention_decode import AttentionWorkspace, attention_decode
from engine.kernels.attention.triton_attention_prefill import attention_prefill, heads_at_once
from engine.kernels.attention.triton_rope_cache import rope_cache
from engine.kernels.batch.triton_prefill_plan import PrefillPlan
from engine.kernels.dense import torch_norm
from tests.examples import combinations
from tests.kernels.closeness import relative_error

PAGE, EPS, LAYER = 16, 1e-6, 1
BOUND = {torch.float32: 2e-3 if torch.cuda.is_available() else 1e-4, torch.bfloat16: 1.2e-2}


@dataclass(frozen=True)
class Kind:
    heads: int
    kv_heads: int
    dim: int
    normed: bool = False
    biased: bool = False
    gated: bool = False
    scale: float | None = None
    window: int | None = None


KINDS = {
    "llama": Kind(8, 2, 64),
    "qwen2": Kind(7, 1, 64, biased=True),
    "qwen3": Kind(3, 3, 32, normed=True),
    "qwen3_5": Kind(6, 1, 32, normed=True, gated=True),
    "window": Kind(8, 2, 16, normed=True, window=21),
    "narrow": Kind(4, 4, 16, window=1),
    "heads-80": Kind(4, 2, 80, normed=True, biased=True),
    "heads-96": Kind(16, 1, 96, gated=True),
    "heads-128": Kind(4, 1, 128),
    "heads-24": Kind(3, 1, 24, window=21),
    # The group and the heads of 122B-A10B; others whose heads are divided among programs.
    "sixteen-256": Kind(32, 2, 256, normed=True, gated=True),
    "nine-256": Kind(9, 1, 256, window=21),
    "eleven-256": Kind(22, 2, 256, biased=True),
    "scaled": Kind(10, 2, 16, normed=True, biased=True, scale=0.4),
}


class Pass:
    """Pages of rows with a random prefix, everything else NaN, and a pass over new tokens."""

    def __init__(
        self, kind: Kind, starts: list[int], lens: list[int], of: torch.dtype, device: torch.device
    ) -> None:
        ends = [start + length for start, length in zip(starts, lens, strict=True)]
        counts = [-(-end // PAGE) for end in ends]
        tables = torch.zeros(len(ends), max(counts), dtype=torch.int64)
        pages = torch.randperm(sum(counts)).split(counts)
        for table, own in zip(tables, pages, strict=True):
            table[: len(own)] = own
        self.kind, self.device = kind, device
        self.rows = Rows(
            torch.arange(len(ends), device=device), torch.tensor(ends, device=device),
            tables.to(device), tuple(starts), tuple(lens), PAGE, 2 * 2 * PAGE,
        )  # fmt: skip
        shape = sum(counts), 2, 2, PAGE, kind.kv_heads, kind.dim
        self.kv = torch.full(shape, float("nan"), dtype=of, device=device)
        for rows in torch_attention.layer_rows(self.kv, LAYER):
            for i, start in enumerate(starts):
                old = torch.randn(start, kind.kv_heads, kind.dim, device=device).to(of)
                rows[self.rows.context_rows[i, :start]] = old
        positions = [p for s, e in zip(starts, ends, strict=True) for p in range(s, e)]
        self.positions = torch.tensor(positions, device=device)
        width = (kind.heads * (1 + kind.gated) + 2 * kind.kv_heads) * kind.dim
        self.projected = torch.randn(len(positions), width, device=device).to(of)
        self.inv_freq = 1e4 ** -(torch.arange(kind.dim // 2, device=device) * 2 / kind.dim)
        normed = (kind.heads + kind.kv_heads) * kind.normed
        self.weight = torch.rand(normed, kind.dim, device=device) + 0.5
        width = (kind.heads + 2 * kind.kv_heads) * kind.dim
        self.bias = torch.randn(width, device=device).to(of) if kind.biased else None

    @property
    def gate(self) -> torch.Tensor | None:
        kind = self.kind
        first = (kind.heads + 2 * kind.kv_heads) * kind.dim
        return self.projected[:, first:] if kind.gated else None

    def roped(self, positions: torch.Tensor, token_rows: torch.Tensor | None) -> torch.Tensor:
        return rope_cache(
            self.projected, self.weight, self.inv_freq, positions, token_rows,
            self.rows.block_tables.int(), self.kv, LAYER, EPS,
            num_heads=self.kind.heads, bias=self.bias,
        )  # fmt: skip

    def truth(self) -> torch.Tensor:
        """The output; k and v are written to ``kv``."""
        kind, num = self.kind, len(self.positions)
        first = (kind.heads + 2 * kind.kv_heads) * kind.dim
        x = self.projected[:, :first]
        x = (x if self.bias is None else x + self.bias).view(num, -1, kind.dim)
        v, kq = x.split_with_sizes((kind.kv_heads, kind.kv_heads + kind.heads), 1)
        rope = torch_norm.rope_table(self.positions, self.inv_freq)
        if kind.normed:
            kq = torch_norm.norm_rope(kq, self.weight, rope, EPS)
        else:
            kq = torch_norm.rotate(kq.to(torch.float32, copy=True), rope).to(kq.dtype)
        kv = self.kv.clone()
        k_rows, v_rows = torch_attention.layer_rows(kv, LAYER)
        k_rows[self.rows.new_rows], v_rows[self.rows.new_rows] = kq[:, : kind.kv_heads], v
        decode = max(self.rows.lens) == 1
        attend = torch_attention.attend_decode if decode else torch_attention.attend_prefill
        of = kq[:, kind.kv_heads :].float(), k_rows.float(), v_rows.float(), self.rows
        out = attend(*of, Span(kind.window, kind.scale)).flatten(1)
        return out if self.gate is None else out * self.gate.float().sigmoid()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", KINDS)
def test_decode(name: str, dtype: torch.dtype, device: torch.device) -> None:
    kind = KINDS[name]
    rows = Pass(kind, [0, 15, 77], [1, 1, 1], dtype, device)
    truth, ends = rows.truth(), rows.rows.ends.int()
    q = rows.roped(ends - 1, None)
    workspace = AttentionWorkspace.allocate(3, kind.heads, kind.dim, device)
    workspace.partials.fill_(float("nan"))
    out = attention_decode(
        q, rows.gate, rows.kv, LAYER, rows.rows.block_tables.int(), ends, workspace,
        scale=kind.scale, window=kind.window, block=16,
    )  # fmt: skip
    assert relative_error(out, truth) < BOUND[dtype]


@pytest.mark.parametrize(
    ("dim", "window"), [(16, None), (16, 21), (16, 70), (128, None), (256, 21)]
)
def test_programs_do_not_change_the_bits(
    dim: int, window: int | None, device: torch.device
) -> None:
    """Programs take from no chunk to all, the last of one block or two, some of it unwritten."""
    kind = Kind(8, 2, dim, window=window)
    rows = Pass(kind, [16, 31, 32, 63, 76, 95, 140], [1] * 7, torch.bfloat16, device)
    truth, ends = rows.truth(), rows.rows.ends.int()
    q = rows.roped(ends - 1, None)
    found = []
    for num_programs in (1, 2, 3, 64):
        workspace = AttentionWorkspace.allocate(7, kind.heads, kind.dim, device)
        workspace.partials.fill_(float("nan"))
        workspace.stats.fill_(float("nan"))
        found.append(
            attention_decode(
                q, None, rows.kv, LAYER, rows.rows.block_tables.int(), ends, workspace,
                window=window, num_programs=num_programs, block=16,
            )
        )  # fmt: skip
    assert relative_error(found[0], truth) < BOUND[torch.bfloat16]
    for out in found[1:]:
        assert torch.equal(out, found[0])


SPANS, DTYPES = (2048, 32), (torch.float32, torch.bfloat16)
EACH_SPAN_AND_DTYPE = [
    (name, DTYPES[(i + j) % 2], span)
    for i, name in enumerate(KINDS)
    for j, span in enumerate(SPANS)
]


@pytest.mark.parametrize(
    ("name", "dtype", "span"),
    combinations(list(product(KINDS, DTYPES, SPANS)), EACH_SPAN_AND_DTYPE),
)
def test_prefill(
    name: str, dtype: torch.dtype, span: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of 33 tokens each has programs of its own, or 16 share them.
    monkeypatch.setattr(triton_rope_cache, "MAX_ALONE", span)
    kind = KINDS[name]
    rows = Pass(kind, [0, 131, 5], [22, 1, 10], dtype, device)
    truth = rows.truth()
    plan = PrefillPlan.of(rows.rows.starts, rows.rows.lens, device)
    q = rows.roped(rows.positions, plan.token_rows)
    out = attention_prefill(
        q, rows.gate, rows.kv, LAYER, rows.rows.block_tables.int(), plan,
        scale=kind.scale, window=kind.window, span=span, block=16,
    )  # fmt: skip
    assert relative_error(out, truth) < BOUND[dtype]


@pytest.mark.parametrize(
    ("group", "head_dim", "together"),
    [(8, 256, 8), (16, 256, 8), (9, 256, 3), (11, 256, 1), (12, 192, 6), (16, 128, 16), (7, 80, 7)],
)
def test_heads_of_a_tile_that_fits_in_shared_memory(
    group: int, head_dim: int, together: int
) -> None:
    assert heads_at_once(group, 16, head_dim) == together
