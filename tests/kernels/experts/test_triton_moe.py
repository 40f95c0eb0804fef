"""The weight-bound Triton kernels against plain PyTorch in float32, at odd shapes."""

import pytest
import torch
import torch.nn.functional as F

from engine.kernels.dense.triton_add_norm import add_rms_norm
from engine.kernels.dense.triton_linear import (
    MAX_STREAMED,
    float_linear,
    linear_parts,
    stream_linear,
)
from engine.kernels.dense.triton_norm_linear import norm_linear, suits_norm_linear
from engine.kernels.dense.triton_rows import Tiles
from engine.kernels.experts.triton_expert_tiles import Tiles as PrefillTiles
from engine.kernels.experts.triton_experts import Tiles as DecodeTiles
from engine.kernels.experts.triton_experts import experts
from engine.kernels.experts.triton_experts_prefill import experts_prefill
from engine.kernels.experts.triton_plan import max_tiles, plan, plan_tiles
from engine.kernels.experts.triton_route import route, route_shared
from engine.model.matrix import Matrix

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NUM_EXPERTS, TOP_K, HIDDEN, DIM = 12, 4, 64, 32
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.randn(shape) * shape[-1] ** -0.25).to(DEVICE, dtype)


def assert_close(ours: torch.Tensor, truth: torch.Tensor, dtype: torch.dtype) -> None:
    error = (ours.float() - truth.float()).norm() / truth.float().norm()
    assert error < (1e-5 if dtype == torch.float32 else 8e-3)


def some_ids(num_tokens: int, num_padded: int = 0) -> torch.Tensor:
    ids = torch.rand(num_tokens, NUM_EXPERTS).argsort(1)[:, :TOP_K].int()
    ids[num_tokens - num_padded :] = -1
    return ids.to(DEVICE)


def true_contributions(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
) -> torch.Tensor:
    """[top_k, tokens, hidden] float32; NaN where there is no expert."""
    x, gate_up, down = x.float(), gate_up.float(), down.float()
    out = torch.full((ids.shape[1], *x.shape), torch.nan, device=x.device)
    for t, row in enumerate(ids.tolist()):
        for j, expert in enumerate(row):
            if expert >= 0:
                gate, up = F.linear(x[t], gate_up[expert]).chunk(2)
                out[j, t] = weights[t, j] * F.linear(F.silu(gate) * up, down[expert])
    return out


@dtypes
@pytest.mark.parametrize(("num_tokens", "dim", "parts"), [(1, 64, 0), (3, 72, 1), (5, 40, 9)])
def test_add_rms_norm(num_tokens: int, dim: int, parts: int, dtype: torch.dtype) -> None:
    hidden, weight = draw(num_tokens, dim, dtype=dtype), 1 + draw(dim)
    # Parts as the experts leave them: a token's next to each other.
    delta = draw(num_tokens, parts, dim).transpose(0, 1) if parts else None
    total = hidden.float() + (delta.sum(0) if delta is not None else 0.0)
    truth = F.rms_norm(total.to(dtype).float(), (dim,), weight, 1e-6)
    out, x = add_rms_norm(hidden, delta, weight, 1e-6)
    assert out is hidden
    assert_close(hidden, total, dtype)
    assert_close(x, truth, dtype)


@dtypes
@pytest.mark.parametrize("weights_first", [False, True])
@pytest.mark.parametrize(("num_tokens", "rows", "splits"), [(1, 33, 1), (5, 64, 4), (70, 97, 2)])
def test_linear(
    num_tokens: int, rows: int, splits: int, weights_first: bool, dtype: torch.dtype
) -> None:
    x, w = draw(num_tokens, 256, dtype=dtype), draw(rows, 256, dtype=dtype)
    y = stream_linear(x, Matrix.of(w), splits, Tiles(32, 32, 2, 4, weights_first))
    assert y.shape == (splits, num_tokens, rows)
    assert_close(y.sum(0), x.float() @ w.float().t(), dtype)


@pytest.mark.parametrize("rows", [64, 129])
def test_norm_and_product_of_one_token_are_those_of_two_kernels(rows: int) -> None:
    dtype, dim = torch.bfloat16, 2048 if DEVICE == "cuda" else 512
    hidden, norm, delta = draw(1, dim, dtype=dtype), 1 + draw(dim), draw(4, 1, dim)
    w = Matrix.of(draw(rows, dim, dtype=dtype))
    assert suits_norm_linear(hidden, w)
    before = hidden.clone()
    added, x, y = norm_linear(hidden, delta, norm, 1e-6, w)
    assert hidden.equal(before), "other programs may have to read it still"
    same_hidden, same_x = add_rms_norm(hidden, delta, norm, 1e-6)
    same_y = linear_parts(same_x, w)
    assert added.equal(same_hidden)
    assert x.equal(same_x)
    assert y.shape == same_y.shape == (4, 1, rows)
    if DEVICE == "cuda":
        assert y.equal(same_y)
    assert_close(y, same_y, torch.float32)


@pytest.mark.parametrize(("num_tokens", "dim"), [(2, 512), (1, 384), (1, 8192), (1, 32)])
def test_other_tokens_and_widths_take_two_kernels(num_tokens: int, dim: int) -> None:
    assert not suits_norm_linear(draw(num_tokens, dim), Matrix.of(draw(8, dim)))


# Only cuBLAS, which computes more rows than that, has float32 sums of bfloat16 operands.
@pytest.mark.parametrize("num_tokens", [1, 33] + [MAX_STREAMED + 1] * (DEVICE == "cuda"))
def test_logits_are_not_rounded(num_tokens: int) -> None:
    x, w = draw(num_tokens, 256, dtype=torch.bfloat16), draw(97, 256, dtype=torch.bfloat16)
    truth = x.float() @ w.float().t()
    assert_close(float_linear(x, Matrix.of(w), len(w)), truth, torch.float32)
    wide = torch.full((num_tokens + 1, 112), torch.nan, device=DEVICE)
    out = wide[:num_tokens, :97]
    assert float_linear(x, Matrix.of(w), len(w), out) is out
    assert_close(out, truth, torch.float32)
    assert wide[num_tokens].isnan().all()
    assert wide[:, 97:].isnan().all()


@pytest.mark.parametrize(("num_tokens", "num_experts"), [(1, 8), (7, 12), (5, 256), (3, 512)])
def test_route(num_tokens: int, num_experts: int) -> None:
    logits = draw(num_tokens, num_experts) * 3
    ids, weights = route(logits, 8)
    truth, true_ids = logits.softmax(-1).topk(8)
    assert torch.equal(ids.long(), true_ids)
    assert_close(weights, truth / truth.sum(-1, keepdim=True), torch.float32)


def test_route_without_renormalising() -> None:
    logits = draw(2, 5, 60) * 3
    ids, weights = route(logits, 4, renormalised=False)
    truth, true_ids = logits.sum(0).softmax(-1).topk(4)
    assert torch.equal(ids.long(), true_ids)
    assert_close(weights, truth, torch.float32)


def test_route_breaks_ties_by_the_lowest_id() -> None:
    logits = torch.zeros(2, 12, device=DEVICE)
    logits[0, ::2] = -0.0
    logits[1, 5:9] = 1.0
    ids, weights = route(logits, 4, torch.zeros(2, dtype=torch.int64, device=DEVICE))
    assert ids.tolist() == [[0, 1, 2, 3], [5, 6, 7, 8]]
    assert weights.eq(0.25).all()


@pytest.mark.parametrize("kind", [torch.int32, torch.int64])
def test_route_gives_a_token_that_is_not_live_no_expert(kind: torch.dtype) -> None:
    logits = draw(4, 12)
    truth, true_weights = route(logits, 4)
    logits[1] = logits[3] = torch.nan
    ids, weights = route(logits, 4, torch.tensor([0, -1, 7, -1], dtype=kind, device=DEVICE))
    assert ids[1::2].eq(-1).all()
    assert weights[1::2].eq(0).all()
    assert torch.equal(ids[::2], truth[::2])
    assert torch.equal(weights[::2], true_weights[::2])


@dtypes
def test_route_shared(dtype: torch.dtype) -> None:
    projected = draw(2, 5, 2 * DIM + NUM_EXPERTS + 1)
    ids, weights, hidden = route_shared(projected, NUM_EXPERTS, TOP_K, dtype)
    gate, up, logits, scale = projected.sum(0).split([DIM, DIM, NUM_EXPERTS, 1], dim=-1)
    true_ids, true_weights = route(logits.contiguous(), TOP_K)
    assert torch.equal(ids, true_ids)
    assert_close(weights, true_weights, torch.float32)
    assert_close(hidden, F.silu(gate) * up * scale.sigmoid(), dtype)


@pytest.mark.parametrize("num_tokens", [1, 5, 33])
def test_plan(num_tokens: int) -> None:
    ids = some_ids(num_tokens, num_tokens // 4)
    lists, counts = plan(ids, NUM_EXPERTS)
    flat = ids.flatten()
    for expert in range(NUM_EXPERTS):
        pairs = (flat == expert).nonzero().flatten()
        assert counts[expert] == len(pairs)
        assert torch.equal(lists[expert, : len(pairs)].long(), pairs)
    expected = [
        (expert, start)
        for expert, count in enumerate(counts.tolist())
        for start in range(0, count, 4)
    ]
    *tiles, (needed, _, _) = plan_tiles(counts, num_tokens, TOP_K, 4).t().tolist()
    assert needed == len(expected)
    assert [(expert, start) for expert, start, _ in tiles if start >= 0] == expected
    before = (counts.cumsum(0) - counts).tolist()
    assert all(row == before[expert] + start for expert, start, row in tiles if start >= 0)


def test_the_bound_on_tiles_holds_for_any_routing() -> None:
    assert max_tiles(1, 8, 256, 16) == 8
    for num_tokens in (1, 16, 17, 40):
        bound = max_tiles(num_tokens, 2, 4, 16)
        for first in range(num_tokens + 1):
            counts = (first, num_tokens - first, num_tokens, 0)
            assert sum(-(-count // 16) for count in counts) <= bound


@dtypes
@pytest.mark.parametrize("num_tokens", [1, 5, 16, 37])
def test_experts(num_tokens: int, dtype: torch.dtype) -> None:
    num_padded = num_tokens // 4
    x = draw(num_tokens, HIDDEN, dtype=dtype)
    gate_up = draw(NUM_EXPERTS, 2 * DIM, HIDDEN, dtype=dtype)
    down = draw(NUM_EXPERTS, HIDDEN, DIM, dtype=dtype)
    ids, weights = some_ids(num_tokens, num_padded), torch.rand(num_tokens, TOP_K).to(DEVICE)
    shared = draw(num_tokens, DIM, dtype=dtype), draw(HIDDEN, DIM, dtype=dtype)
    both = shared[0], Matrix.of(shared[1])
    tiles = DecodeTiles(16, 32, 2, 4), DecodeTiles(32, 16, 2, 4)
    y = experts(x, ids, weights, Matrix.of(gate_up), Matrix.of(down), both, tiles)
    truth = true_contributions(x, ids, weights, gate_up, down)
    num_live = num_tokens - num_padded
    assert y.shape == (TOP_K + 1, num_tokens, HIDDEN)
    assert_close(y[:TOP_K, :num_live], truth[:, :num_live], dtype)
    assert_close(y[TOP_K], shared[0].float() @ shared[1].float().t(), dtype)


@dtypes
@pytest.mark.parametrize("num_tokens", [3, 45])
def test_experts_prefill(num_tokens: int, dtype: torch.dtype) -> None:
    num_padded = num_tokens // 4
    x = draw(num_tokens, HIDDEN, dtype=dtype)
    gate_up = draw(NUM_EXPERTS, 2 * DIM, HIDDEN, dtype=dtype)
    down = draw(NUM_EXPERTS, HIDDEN, DIM, dtype=dtype)
    ids, weights = some_ids(num_tokens, num_padded), torch.rand(num_tokens, TOP_K).to(DEVICE)
    tiles = PrefillTiles(32, 32, 32, 2, 4, 2, 16), PrefillTiles(16, 32, 32, 2, 4)
    y = experts_prefill(x, ids, weights, Matrix.of(gate_up), Matrix.of(down), tiles)
    truth = true_contributions(x, ids, weights, gate_up, down)
    num_live = num_tokens - num_padded
    assert_close(y[:, :num_live], truth[:, :num_live], dtype)


def test_a_tokens_result_does_not_depend_on_its_batch() -> None:
    x = draw(20, HIDDEN, dtype=torch.bfloat16)
    gate_up = Matrix.of(draw(NUM_EXPERTS, 2 * DIM, HIDDEN, dtype=torch.bfloat16))
    down = Matrix.of(draw(NUM_EXPERTS, HIDDEN, DIM, dtype=torch.bfloat16))
    ids, weights = some_ids(20), torch.rand(20, TOP_K).to(DEVICE)
    tiles = DecodeTiles(16, 32, 2, 4), DecodeTiles(32, 16, 2, 4)
    packed = experts(x, ids, weights, gate_up, down, tiles=tiles)
    alone = experts(x[2:3], ids[2:3], weights[2:3], gate_up, down, tiles=tiles)
    assert torch.equal(packed[:, 2], alone[:, 0])
