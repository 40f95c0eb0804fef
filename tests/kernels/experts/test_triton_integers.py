"""Experts and matrices in int4 and int8 against the same weights dequantised."""

import pytest
import torch
import torch.nn.functional as F

from engine.kernels.dense.triton_linear import stream_linear
from engine.kernels.dense.triton_rows import Tiles as RowTiles
from engine.kernels.experts.triton_experts_nvfp4 import Tiles, experts_nvfp4
from engine.kernels.formats.triton_nvfp4 import widened_experts
from engine.model.int4_experts import Int4Experts
from engine.model.int8_experts import ZERO, Int8Experts
from engine.model.matrix import Matrix
from engine.model.packed_experts import RUN, PackedExperts
from engine.quantized.integer_place import IntegerPlace

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
NUM_EXPERTS, TOP_K, HIDDEN, DIM = 6, 4, 256, 128
DTYPES = [torch.bfloat16] if DEVICE.type == "cuda" else [torch.float32, torch.bfloat16]
Kind = type[Int4Experts | Int8Experts]
KINDS: list[Kind] = [Int4Experts, Int8Experts]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 8e-3}


def stored(
    kind: Kind, rows: int, columns: int, group: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Random numbers, zero points, and scales of bfloat16, a few of which are 0 or negative."""
    numbers = torch.randint(0, 16, (rows, columns), dtype=torch.int32)
    zeros = torch.randint(0, 16, (rows, columns // group), dtype=torch.int32)
    scales = (torch.rand(zeros.shape) + 0.1) * columns**-0.5 / 4
    scales *= torch.rand(zeros.shape).gt(0.1) * torch.rand(zeros.shape).gt(0.1).mul(2).sub(1)
    if kind is Int8Experts:
        numbers = torch.randint(0, 256, (rows, columns), dtype=torch.int32)
        zeros.fill_(ZERO)
        scales /= 16
    return numbers.to(DEVICE), zeros.to(DEVICE), scales.bfloat16().to(DEVICE)


def values(numbers: torch.Tensor, zeros: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    group = numbers.shape[1] // zeros.shape[1]
    wide_zeros, wide = (each.repeat_interleave(group, 1) for each in (zeros, scales))
    return (numbers - wide_zeros) * wide.float()


def drawn(
    kind: Kind, rows: int, columns: int, runs: int, group: int
) -> tuple[PackedExperts, torch.Tensor]:
    """(experts, their values)."""
    own = rows // runs
    experts = kind.empty(NUM_EXPERTS, (own,) * runs, columns, DEVICE)
    truth = torch.empty(NUM_EXPERTS, rows, columns)
    for expert in range(NUM_EXPERTS):
        for first in range(0, rows, own):
            parts = stored(kind, own, columns, group)
            IntegerPlace(experts, expert, first, own).copy_integers(*parts)
            truth[expert, first : first + own] = values(*parts)
    return experts, truth


@pytest.mark.parametrize(
    ("kind", "group"),
    [
        (Int4Experts, 32),
        (Int4Experts, 64),
        (Int4Experts, 128),
        (Int8Experts, 64),
        (Int8Experts, 128),
    ],
)
def test_memory_has_the_stored_values(kind: Kind, group: int) -> None:
    torch.manual_seed(group)
    experts, truth = drawn(kind, 2 * DIM, HIDDEN, 2, group)
    assert torch.equal(experts.dequantised().cpu(), truth)
    # The interpreter's conversion to bfloat16 cuts bits off.
    widened = widened_experts(experts, torch.bfloat16).plain.cpu().float()
    torch.testing.assert_close(widened, truth, rtol=2**-7, atol=0)
    assert (
        experts.nbytes
        == truth.numel() * (9 if kind is Int4Experts else 17) // 16 + 4 * 2 * NUM_EXPERTS
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("kind", "num_tokens", "group"),
    [
        (Int4Experts, 1, 32), (Int4Experts, 3, 64), (Int4Experts, 16, 128), (Int4Experts, 37, 32),
        (Int8Experts, 1, 64), (Int8Experts, 3, 128), (Int8Experts, 16, 64), (Int8Experts, 37, 128),
    ],
)  # fmt: skip
def test_experts_are_those_of_dequantised_weights(
    kind: Kind, num_tokens: int, group: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    gate_up, _ = drawn(kind, 2 * DIM, HIDDEN, 2, group)
    down, _ = drawn(kind, HIDDEN, DIM, 1, group)
    # The interpreter's conversion to bfloat16 cuts bits off: these are the values so rounded.
    true_gate_up, true_down = (
        widened_experts(each, dtype).plain.cpu().float() for each in (gate_up, down)
    )
    x, ids, weights = inputs(num_tokens, dtype)
    y = experts_nvfp4(x, ids, weights, gate_up, down).cpu()
    for t, row in enumerate(ids.tolist()):
        for j, expert in enumerate(row):
            gate, up = F.linear(x[t].cpu().float(), true_gate_up[expert]).chunk(2)
            truth = weights[t, j].cpu() * F.linear(F.silu(gate) * up, true_down[expert])
            assert (y[j, t] - truth).norm() < TOLERANCE[dtype] * truth.norm()


def inputs(num_tokens: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    x = torch.randn(num_tokens, HIDDEN).to(DEVICE, dtype)
    ids = torch.rand(num_tokens, NUM_EXPERTS).argsort(1)[:, :TOP_K].int().to(DEVICE)
    return x, ids.contiguous(), torch.rand(num_tokens, TOP_K).to(DEVICE)


@pytest.mark.parametrize("kind", KINDS)
def test_a_tokens_bits_do_not_depend_on_its_batch(kind: Kind) -> None:
    torch.manual_seed(1)
    gate_up, _ = drawn(kind, 2 * DIM, HIDDEN, 2, 64)
    down, _ = drawn(kind, HIDDEN, DIM, 1, 64)
    x, ids, weights = inputs(40, torch.bfloat16)
    together = experts_nvfp4(x, ids, weights, gate_up, down)
    for first, count in ((0, 1), (5, 4), (8, 20)):
        part = (each[first : first + count].contiguous() for each in (x, ids, weights))
        alone = experts_nvfp4(*part, gate_up, down)
        assert torch.equal(alone, together[:, first : first + count])
    tiles = Tiles(64, 4, 3, 64, weights_first=True)
    turned = experts_nvfp4(x, ids, weights, gate_up, down, tiles=(tiles, tiles))
    assert torch.equal(turned, together)


@pytest.mark.parametrize("weights_first", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_product(kind: Kind, weights_first: bool) -> None:
    torch.manual_seed(2)
    rows = kind.empty(1, (RUN,) * 2, 512, DEVICE)
    IntegerPlace(rows, 0, 0, 2 * RUN).copy_integers(*stored(kind, 2 * RUN, 512, 64))
    w = Matrix.of_packed(rows, torch.randn(48, 512).bfloat16().to(DEVICE))
    x = torch.randn(37, 512).bfloat16().to(DEVICE)
    tiles = RowTiles(32, 64, 2, 4, weights_first)
    y = stream_linear(x, w, 2, tiles).float().sum(0)
    truth = x.float() @ w.dequantised().float().T
    assert (y - truth).norm() < 5e-3 * truth.norm()
    assert torch.equal(stream_linear(x[5:6], w, 2, tiles).float().sum(0)[0], y[5])


def test_a_scale_that_is_no_finite_number_is_refused() -> None:
    rows = Int4Experts.empty(1, (RUN,), 64, DEVICE)
    numbers, zeros, scales = stored(Int4Experts, RUN, 64, 32)
    scales[3, 1] = torch.inf
    with pytest.raises(ValueError, match="int4: a scale that is no finite number"):
        IntegerPlace(rows, 0, 0, RUN).copy_integers(numbers, zeros, scales)


def test_float16_scales_are_rounded_to_eight_bits() -> None:
    rows = Int4Experts.empty(1, (RUN,), 64, DEVICE)
    numbers, zeros, _ = stored(Int4Experts, RUN, 64, 32)
    scales = torch.rand(RUN, 2, device=DEVICE).half()
    IntegerPlace(rows, 0, 0, RUN).copy_integers(numbers, zeros, scales)
    truth = values(numbers, zeros, scales.float().bfloat16())
    assert torch.equal(rows.dequantised()[0], truth)


def test_another_zero_point_of_int8_is_refused() -> None:
    rows = Int8Experts.empty(1, (RUN,), 64, DEVICE)
    numbers, zeros, scales = stored(Int8Experts, RUN, 64, 64)
    with pytest.raises(ValueError, match="int8: a zero point that is not 128"):
        IntegerPlace(rows, 0, 0, RUN).copy_integers(numbers, zeros + 1, scales)


@pytest.mark.parametrize("kind", KINDS)
def test_drawn_weights_have_the_variance_of_random_ones(kind: Kind) -> None:
    experts = kind.empty(NUM_EXPERTS, (DIM, DIM), HIDDEN, DEVICE)
    experts.draw(torch.Generator(DEVICE).manual_seed(0))
    values = experts.dequantised()
    assert float(values.mean()) == pytest.approx(0.0, abs=0.05 * HIDDEN**-0.5)
    assert float(values.std()) == pytest.approx(HIDDEN**-0.5, rel=0.02)
