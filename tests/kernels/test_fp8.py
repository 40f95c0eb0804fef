"""The Triton kernels over FP8 weights against plain PyTorch over the dequantised ones."""

import pytest
import torch
import torch.nn.functional as F

from engine.kernels.delta.triton_gated_norm import gated_rms_norm
from engine.kernels.dense.triton_add_norm import add_rms_norm
from engine.kernels.dense.triton_linear import float_linear, linear, linear_parts, stream_linear
from engine.kernels.dense.triton_rows import Tiles
from engine.kernels.experts.triton_expert_tiles import Tiles as PrefillTiles
from engine.kernels.experts.triton_experts import Tiles as DecodeTiles
from engine.kernels.experts.triton_experts import experts
from engine.kernels.experts.triton_experts_fp8 import experts_fp8
from engine.kernels.formats.triton_fp8 import widened_rows
from engine.kernels.formats.triton_quantise import Quantised, quantise_rows
from engine.kernels.formats.triton_split import Split, split_rows
from engine.model.matrix import FP8, Matrix
from tests.kernels.closeness import relative_error

NUM_EXPERTS, TOP_K, HIDDEN, DIM = 6, 2, 256, 256
BF16 = torch.bfloat16
CLOSE = 8e-3


def draw(*shape: int, device: torch.device) -> torch.Tensor:
    """bfloat16, blocks of different sizes."""
    rows = torch.randn(shape, device=device) * shape[-1] ** -0.25
    return (rows * torch.logspace(-1, 1, shape[-2], device=device)[:, None]).to(BF16)


def mixed(num_fp8: int, num_plain: int, k: int, device: torch.device) -> Matrix:
    plain = draw(num_plain, k, device=device) if num_plain else torch.empty(0, k, device=device)
    converted = Matrix.converted(draw(num_fp8, k, device=device))
    return Matrix(converted.fp8, converted.scales, plain.to(BF16))


def truth(x: torch.Tensor, w: Matrix) -> torch.Tensor:
    return F.linear(x.float(), Matrix(w.fp8, w.scales, w.plain.float()).dequantised())


@pytest.mark.parametrize("unrolled", [1, 2])
@pytest.mark.parametrize(
    ("num_tokens", "num_fp8", "num_plain", "splits"),
    [(1, 128, 0, 1), (5, 128, 33, 1), (17, 256, 1, 2), (70, 128, 40, 4)],
)
def test_linear(
    num_tokens: int,
    num_fp8: int,
    num_plain: int,
    splits: int,
    unrolled: int,
    device: torch.device,
) -> None:
    x, w = draw(num_tokens, 512, device=device), mixed(num_fp8, num_plain, 512, device)
    y = stream_linear(x, w, splits, Tiles(32, 32, 2, 4, True, 2, 2, unrolled))
    assert y.shape == (splits, num_tokens, num_fp8 + num_plain)
    assert relative_error(y.sum(0)[:, :num_fp8], truth(x, w)[:, :num_fp8]) < CLOSE
    if num_plain:
        assert relative_error(y.sum(0)[:, num_fp8:], truth(x, w)[:, num_fp8:]) < CLOSE


def test_a_norm_is_split_into_two_exactly(device: torch.device) -> None:
    hidden, weight = draw(5, HIDDEN, device=device), torch.ones(HIDDEN, device=device)
    hidden[:, ::11] *= 30
    hidden[4] = 0.0
    split = Split.empty(5, HIDDEN, 1, device)
    _, x = add_rms_norm(hidden, None, weight, 1e-6, split)
    largest = x.float().abs().amax(1, keepdim=True)
    back = split.q.float().sum(1) * split.s
    assert ((back - x.float()).abs() <= largest * 2.0**-17).all()
    assert torch.equal(back, torch.where(x.float().abs() >= largest / 512, x.float(), back))
    assert ((largest / split.s)[:4] >= 128).all()
    assert (largest / split.s < 256).all()
    again = split_rows(x)
    assert torch.equal(again.q.view(torch.uint8), split.q.view(torch.uint8))
    assert torch.equal(again.s, split.s)


@pytest.mark.parametrize(("num_fp8", "num_plain"), [(128, 0), (256, 33)])
def test_linear_of_a_split(num_fp8: int, num_plain: int, device: torch.device) -> None:
    x, w = draw(33, 512, device=device), mixed(num_fp8, num_plain, 512, device)
    x[:, ::11] *= 30
    for product in (linear, linear_parts):
        y = product(x, w, split_rows(x))
        summed = y if product is linear else y.sum(0)
        assert relative_error(summed[:, :num_fp8], truth(x, w)[:, :num_fp8]) < CLOSE
        if num_plain:
            assert relative_error(summed[:, num_fp8:], truth(x, w)[:, num_fp8:]) < CLOSE
        alone = product(x[2:3], w, split_rows(x[2:3]))
        assert torch.equal(alone[..., 0, :], y[..., 2, :])


def rejoined(split: Split) -> torch.Tensor:
    """The rows that were split."""
    return split.q.float().sum(1) * split.s.repeat_interleave(
        split.q.shape[2] // split.num_groups, 1
    )


@pytest.mark.parametrize(("num_fp8", "num_plain"), [(128, 0), (256, 33)])
def test_linear_of_a_split_in_groups(num_fp8: int, num_plain: int, device: torch.device) -> None:
    x, w = draw(33, 1024, device=device), mixed(num_fp8, num_plain, 1024, device)
    x[:, 128:256] *= 3000
    split = split_rows(x, 8)
    largest = x.float().unflatten(1, (8, 128)).abs().amax(2).repeat_interleave(128, 1)
    assert ((rejoined(split) - x.float()).abs() <= largest * 2.0**-17).all()
    y = linear_parts(x, w, split)
    assert y.shape[0] == 4
    assert relative_error(y.sum(0)[:, :num_fp8], truth(x, w)[:, :num_fp8]) < CLOSE
    if num_plain:
        assert relative_error(y.sum(0)[:, num_fp8:], truth(x, w)[:, num_fp8:]) < CLOSE
    alone = linear_parts(x[2:3], w, split_rows(x[2:3], 8))
    assert torch.equal(alone[:, 0], y[:, 2])


# Only cuBLAS, which computes more rows than that, has float32 sums of bfloat16 operands.
@pytest.mark.parametrize("num_tokens", [1, 33, 64] + [130] * torch.cuda.is_available())
def test_logits_of_the_first_ids(
    num_tokens: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.kernels.dense.triton_linear.WIDENED_AT_ONCE", 128)
    x, w = draw(num_tokens, 512, device=device), mixed(256, 0, 512, device)
    wide = torch.full((num_tokens + 1, 224), torch.nan, device=device)
    out = wide[:num_tokens, :208]
    assert float_linear(x, w, 208, out) is out
    # FP8 tensor cores keep fewer bits of a sum.
    close = CLOSE if device.type == "cuda" else 2.0**-15
    assert relative_error(out, truth(x, w)[:, :208]) < close
    assert wide[num_tokens].isnan().all()
    assert wide[:, 208:].isnan().all()
    if num_tokens <= 64:
        assert float_linear(x[-1:], w, 208).equal(out[-1:]), "other rows change no bit of a row"


def test_every_e4m3_number_is_exact_in_a_product(device: torch.device) -> None:
    numbers = torch.arange(256, dtype=torch.uint8, device=device).view(FP8)
    numbers = torch.where(numbers.float().isnan(), 0.0, numbers.float()).to(FP8)
    w = Matrix(
        numbers.repeat(128).view(128, 256),
        torch.tensor([[1.0, 0.5]], device=device),
        torch.empty(0, 256, dtype=BF16, device=device),
    )
    every = torch.eye(256, dtype=BF16, device=device)
    tiles = Tiles(64, 64, 2, 4, True)
    y = torch.cat([stream_linear(x, w, 1, tiles)[0] for x in every.split(64)])
    assert torch.equal(y.float(), truth(every, w))
    assert torch.equal(widened_rows(w).float(), w.dequantised().float())


def routed(num_tokens: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.rand(num_tokens, NUM_EXPERTS).argsort(1)[:, :TOP_K].int()
    ids[num_tokens - num_tokens // 4 :] = -1
    return ids.to(device), torch.rand(num_tokens, TOP_K).to(device)


def true_contributions(
    x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, gate_up: Matrix, down: Matrix
) -> torch.Tensor:
    x, into, out_of = x.float(), gate_up.dequantised().float(), down.dequantised().float()
    out = torch.full((TOP_K, *x.shape), torch.nan, device=x.device)
    for t, row in enumerate(ids.tolist()):
        for j, expert in enumerate(row):
            if expert >= 0:
                gate, up = F.linear(x[t], into[expert]).chunk(2)
                out[j, t] = weights[t, j] * F.linear(F.silu(gate) * up, out_of[expert])
    return out


def some_experts(device: torch.device) -> tuple[Matrix, Matrix]:
    gate_up = draw(NUM_EXPERTS, 2 * DIM, HIDDEN, device=device) / 4
    return Matrix.converted(gate_up), Matrix.converted(
        draw(NUM_EXPERTS, HIDDEN, DIM, device=device)
    )


@pytest.mark.parametrize("shared_fp8", [False, True])
@pytest.mark.parametrize(("num_tokens", "bands"), [(1, 1), (5, 2), (37, 1)])
def test_experts(num_tokens: int, bands: int, shared_fp8: bool, device: torch.device) -> None:
    x, (gate_up, down) = draw(num_tokens, HIDDEN, device=device), some_experts(device)
    ids, weights = routed(num_tokens, device)
    shared = draw(num_tokens, DIM, device=device)
    shared_down = mixed(HIDDEN, 0, DIM, device)
    if not shared_fp8:
        shared_down = Matrix.of(shared_down.dequantised())
    tiles = DecodeTiles(64, 128, 2, 4), DecodeTiles(128 // bands, 128, 2, 4, bands=bands)
    y = experts(x, ids, weights, gate_up, down, (shared, shared_down), tiles)
    live = num_tokens - num_tokens // 4
    expected = true_contributions(x, ids, weights, gate_up, down)
    assert relative_error(y[:TOP_K, :live], expected[:, :live]) < CLOSE
    assert relative_error(y[TOP_K], truth(shared, shared_down)) < CLOSE


def test_a_tokens_result_does_not_depend_on_its_batch(device: torch.device) -> None:
    x, (gate_up, down) = draw(20, HIDDEN, device=device), some_experts(device)
    ids = torch.rand(20, NUM_EXPERTS).argsort(1)[:, :TOP_K].int().to(device)
    weights = torch.rand(20, TOP_K).to(device)
    gate, whole = DecodeTiles(64, 128, 2, 4), DecodeTiles(128, 128, 2, 4)
    packed = experts(x, ids, weights, gate_up, down, tiles=(gate, whole))
    for each in (whole, DecodeTiles(64, 128, 2, 4, bands=2)):
        alone = experts(x[2:3], ids[2:3], weights[2:3], gate_up, down, tiles=(gate, each))
        assert torch.equal(packed[:, 2], alone[:, 0])
    w = mixed(256, 33, HIDDEN, device)
    tiles = Tiles(64, 64, 2, 4, True)
    assert torch.equal(
        stream_linear(x, w, 2, tiles)[:, 2], stream_linear(x[2:3], w, 2, tiles)[:, 0]
    )


@pytest.mark.parametrize("num_tokens", [1, 33])
def test_quantise_rows(num_tokens: int, device: torch.device) -> None:
    x = draw(num_tokens, 384, device=device)
    x[0, :128] = 0.0
    quantised = quantise_rows(x)
    assert quantised.is_of_rows(x)
    q, scales = (each[:num_tokens] for each in quantised)
    blocks = x.float().unflatten(1, (3, 128))
    assert relative_error(scales, blocks.abs().amax(-1) / 448) < 1e-6
    back = q.float().unflatten(1, (3, 128)) * scales[..., None]
    assert ((back - blocks).abs() <= blocks.abs() / 15 + scales[..., None] * 2**-9).all()


def same_quantised(a: Quantised, b: Quantised, num_tokens: int) -> bool:
    a, b = (Quantised(*(part[:num_tokens] for part in each)) for each in (a, b))
    return torch.equal(a.q.view(torch.uint8), b.q.view(torch.uint8)) and torch.equal(
        a.scales, b.scales
    )


@pytest.mark.parametrize("dim", [256, 384])
def test_the_norm_writes_its_output_in_fp8_too(dim: int, device: torch.device) -> None:
    hidden, delta = draw(33, dim, device=device), draw(2, 33, dim, device=device)
    weight = torch.rand(dim, device=device)
    _, expected = add_rms_norm(hidden.clone(), delta, weight, 1e-6)
    quantised = Quantised.empty(33, dim, device)
    _, x = add_rms_norm(hidden, delta, weight, 1e-6, quantised)
    assert torch.equal(x, expected)
    assert same_quantised(quantised, quantise_rows(x), 33)


@pytest.mark.parametrize("heads", [2, 3])
def test_the_gated_norm_writes_its_output_in_fp8_too(heads: int, device: torch.device) -> None:
    x, gate = draw(17, heads, 128, device=device), draw(17, heads * 128, device=device)
    weight, quantised = torch.rand(128, device=device), Quantised.empty(17, heads * 128, device)
    expected = gated_rms_norm(x, gate, weight, 1e-6)
    out = gated_rms_norm(x, gate, weight, 1e-6, quantised)
    assert torch.equal(out, expected)
    assert same_quantised(quantised, quantise_rows(out), 17)


@pytest.mark.parametrize("num_tokens", [3, 45])
def test_experts_on_fp8_tensor_cores(num_tokens: int, device: torch.device) -> None:
    x, (gate_up, down) = draw(num_tokens, HIDDEN, device=device), some_experts(device)
    ids, weights = routed(num_tokens, device)
    tiles = PrefillTiles(64, 256, 128, 2, 4, 1, 16), PrefillTiles(64, 64, 128, 2, 4)
    y = experts_fp8(x, ids, weights, gate_up, down, tiles)
    again = experts_fp8(x, ids, weights, gate_up, down, tiles, quantise_rows(x))
    assert torch.equal(y[ids.t() >= 0], again[ids.t() >= 0])
    live = num_tokens - num_tokens // 4
    expected = true_contributions(x, ids, weights, gate_up, down)
    # Of activations with three bits of mantissa.
    assert relative_error(y[:, :live], expected[:, :live]) < 0.05
