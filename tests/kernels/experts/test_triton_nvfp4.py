"""W4A16 experts against the same experts with dequantised weights, in plain PyTorch."""

import pytest
import torch
import torch.nn.functional as F

from bench import packed_experts
from engine.kernels.experts.triton_experts_nvfp4 import Tiles, experts_nvfp4
from engine.model.nvfp4_experts import Nvfp4Experts
from engine.quantized.nvfp4 import converted, dequantise, rounded

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NUM_EXPERTS, TOP_K, HIDDEN, DIM = 6, 4, 256, 128
DTYPES = [torch.bfloat16] if DEVICE == "cuda" else [torch.float32, torch.bfloat16]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 8e-3}


def drawn(rows: int, columns: int, runs: int) -> tuple[Nvfp4Experts, torch.Tensor]:
    """(experts in NVFP4, their values): each run of rows is converted as a matrix of its own."""
    packed, scales, matrix_scales, values = [], [], [], []
    for _ in range(NUM_EXPERTS * runs):
        matrix = torch.randn(rows // runs, columns) * torch.rand(()) * columns**-0.5
        part, scale, matrix_scale = converted(matrix)
        packed.append(part)
        scales.append(scale.view(torch.uint8))
        matrix_scales.append(matrix_scale)
        values.append(dequantise(part, scale.float() * matrix_scale))
    nvfp4 = Nvfp4Experts.of(
        torch.stack(packed).view(NUM_EXPERTS, rows, -1).to(DEVICE),
        torch.stack(scales).view(NUM_EXPERTS, rows, -1).to(DEVICE).view(torch.float8_e4m3fn),
        torch.stack(matrix_scales).view(NUM_EXPERTS, runs).to(DEVICE),
    )
    return nvfp4, torch.stack(values).view(NUM_EXPERTS, rows, columns)


def inputs(num_tokens: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    x = torch.randn(num_tokens, HIDDEN).to(DEVICE, dtype)
    ids = torch.rand(num_tokens, NUM_EXPERTS).argsort(1)[:, :TOP_K].int().to(DEVICE)
    return x, ids.contiguous(), torch.rand(num_tokens, TOP_K).to(DEVICE)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("num_tokens", [1, 3, 16, 37])
def test_experts_are_those_of_dequantised_weights(num_tokens: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    (gate_up, true_gate_up), (down, true_down) = drawn(2 * DIM, HIDDEN, 2), drawn(HIDDEN, DIM, 1)
    x, ids, weights = inputs(num_tokens, dtype)
    ids[-1, 1] = -1
    y = experts_nvfp4(x, ids, weights, gate_up, down).cpu()
    for t, row in enumerate(ids.tolist()):
        for j, expert in enumerate(row):
            if expert < 0:
                continue
            gate, up = F.linear(x[t].cpu().float(), true_gate_up[expert]).chunk(2)
            truth = weights[t, j].cpu() * F.linear(F.silu(gate) * up, true_down[expert])
            assert (y[j, t] - truth).norm() < TOLERANCE[dtype] * truth.norm()


def test_a_tokens_bits_do_not_depend_on_its_batch() -> None:
    torch.manual_seed(1)
    (gate_up, _), (down, _) = drawn(2 * DIM, HIDDEN, 2), drawn(HIDDEN, DIM, 1)
    x, ids, weights = inputs(40, torch.bfloat16)
    together = experts_nvfp4(x, ids, weights, gate_up, down)
    for first, count in ((0, 1), (5, 4), (39, 1), (8, 20)):
        part = (each[first : first + count].contiguous() for each in (x, ids, weights))
        alone = experts_nvfp4(*part, gate_up, down)
        assert torch.equal(alone, together[:, first : first + count])


def test_the_order_of_operands_changes_no_result() -> None:
    torch.manual_seed(2)
    (gate_up, _), (down, _) = drawn(2 * DIM, HIDDEN, 2), drawn(HIDDEN, DIM, 1)
    step = inputs(40, torch.bfloat16)
    tiles, reverse = (Tiles(64, 4, 3, 64, weights_first) for weights_first in (False, True))
    truth = experts_nvfp4(*step, gate_up, down, tiles=(tiles, tiles))
    assert torch.equal(experts_nvfp4(*step, gate_up, down, tiles=(reverse, reverse)), truth)


def test_weights_take_four_and_a_half_bits() -> None:
    experts, _ = drawn(2 * DIM, HIDDEN, 2)
    values = NUM_EXPERTS * 2 * DIM * HIDDEN
    assert experts.nbytes == values * 9 // 16 + 4 * 2 * NUM_EXPERTS


def test_columns_that_do_not_fill_64_are_refused() -> None:
    packed, scale, matrix_scale = (each[None] for each in converted(torch.randn(4, 96)))
    with pytest.raises(ValueError, match="NVFP4: 96 columns"):
        Nvfp4Experts.of(packed, scale.view(torch.float8_e4m3fn), matrix_scale[None])


def test_a_scale_that_is_negative_is_refused() -> None:
    packed, scale, matrix_scale = (each[None] for each in converted(torch.randn(4, 64)))
    scale.view(torch.uint8)[0, 1, 2] |= 128
    with pytest.raises(ValueError, match="NVFP4: a scale that is negative"):
        Nvfp4Experts.of(packed, scale, matrix_scale[None])


def test_each_code_and_each_scale_keeps_its_value() -> None:
    packed = torch.arange(256).to(torch.uint8).repeat(127, 1)[:, :256]
    scales = torch.arange(127).to(torch.uint8).view(torch.float8_e4m3fn)
    scales = scales[:, None].expand(-1, 32).contiguous()
    experts = Nvfp4Experts.of(packed[None], scales[None], torch.ones(1, 1))
    values = dequantise(packed, scales.float())
    assert torch.equal(experts.dequantised()[0], values)


@pytest.mark.parametrize("columns", [32, 40])
def test_converted_numbers_have_the_rounded_values(columns: int) -> None:
    rows = torch.randn(8, columns)
    packed, scale, matrix_scale = converted(rows)
    assert packed.shape[-1] == 8 * scale.shape[-1]
    values = dequantise(packed, scale.float() * matrix_scale)
    assert torch.equal(values[:, :columns], rounded(rows))
    assert values[:, columns:].eq(0).all()


@pytest.mark.parametrize("num_rows", [2, 20])
def test_the_benchmark_compares_the_same_weights(num_rows: int) -> None:
    torch.manual_seed(2)
    device = torch.device(DEVICE)
    gate_up = packed_experts.drawn(NUM_EXPERTS, 2 * DIM, HIDDEN, 2, device)
    down = packed_experts.drawn(NUM_EXPERTS, HIDDEN, DIM, 1, device)
    step = packed_experts.chosen(num_rows, NUM_EXPERTS, TOP_K, HIDDEN, device)
    assert packed_experts.difference(step, gate_up, down) < packed_experts.TOLERANCE
