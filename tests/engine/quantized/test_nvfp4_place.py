"""Experts' tensors that stay in NVFP4, whole or one by one."""

import pytest
import torch

from engine.loading.plan import Interleaving
from engine.model.nvfp4_experts import Nvfp4Experts
from engine.model.packed_experts import RUN
from engine.quantized import nvfp4
from engine.quantized.nvfp4 import converted, dequantise
from engine.quantized.nvfp4_place import Nvfp4Place, Nvfp4RowsPlace

NUM, DIM, COLUMNS = 3, 4, 64


def empty() -> Nvfp4Experts:
    return Nvfp4Experts.empty(NUM, (DIM, DIM), COLUMNS, torch.device("cpu"))


def stored() -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales of experts of two matrices each."""
    packed, scales, _ = converted(torch.randn(NUM, 2 * DIM, COLUMNS))
    return packed, scales


@pytest.mark.parametrize("shape", [(), (1,), (NUM,), (NUM, 1), (NUM, 2)])
def test_experts_in_one_tensor(shape: tuple[int, ...]) -> None:
    (packed, scales), matrix_scales = stored(), torch.rand(shape) + 0.5
    experts = empty()
    Nvfp4Place(experts).copy_packed(packed, scales, matrix_scales)
    wide = matrix_scales.reshape(NUM if matrix_scales.numel() > 1 else 1, -1).expand(NUM, -1)
    wide = wide.expand(NUM, 2).repeat_interleave(DIM, 1).unsqueeze(-1)
    truth = dequantise(packed, scales.float()) * wide
    assert torch.allclose(experts.dequantised(), truth, rtol=1e-6)


@pytest.mark.parametrize("shape", [(NUM, 4), (2,)])
def test_matrix_scales_that_fit_no_matrices_are_refused(shape: tuple[int, ...]) -> None:
    scales = torch.ones(shape)
    with pytest.raises(ValueError, match=f"^{scales.numel()} matrix scales for 3 experts of 2"):
        Nvfp4Place(empty()).copy_packed(*stored(), scales)


def test_several_matrix_scales_of_one_matrix_are_refused() -> None:
    packed, scales = (each[0, :DIM] for each in stored())
    with pytest.raises(ValueError, match="2 scales for one matrix"):
        Nvfp4Place(empty(), 0).copy_packed(packed, scales, torch.ones(2))


def test_experts_one_by_one_and_whole_are_converted_alike() -> None:
    rows = torch.randn(NUM, 2 * DIM, COLUMNS)
    whole, apart = empty(), empty()
    Nvfp4Place(whole, rounds=True).copy(rows)
    for expert in range(NUM):
        for run, matrix in enumerate(rows[expert].split(DIM)):
            place = Nvfp4Place(apart, expert, run, rounds=True)
            assert place.shape == matrix.shape
            place.copy(matrix)
    assert torch.equal(whole.words, apart.words)
    assert torch.equal(whole.scales, apart.scales)
    assert torch.equal(whole.matrix_scales, apart.matrix_scales)


def test_nothing_is_rounded_unasked() -> None:
    with pytest.raises(ValueError, match="--quantize nvfp4 asks for"):
        Nvfp4Place(empty()).copy(torch.randn(NUM, 2 * DIM, COLUMNS))


def test_dummy_values_have_a_variance_of_one_over_the_columns() -> None:
    experts = empty()
    Nvfp4Place(experts).draw(torch.Generator().manual_seed(0))
    values = experts.dequantised()
    assert values.square().mean() * COLUMNS == pytest.approx(1, rel=0.1)
    assert abs(values.mean()) < 0.02


@pytest.mark.parametrize("order", [None, Interleaving(2, (32, 64))])
def test_rows_of_a_matrix(order: Interleaving | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stored or converted, some rows at a time, with one matrix scale, behind other rows."""
    monkeypatch.setattr(nvfp4, "AT_ONCE", 1)
    rows = torch.randn(192, COLUMNS)
    packed, scales, matrix_scale = converted(rows)
    runs = (RUN,) * 4
    made, read = (Nvfp4Experts.empty(1, runs, COLUMNS, torch.device("cpu")) for _ in range(2))
    for into in (made, read):
        into.draw(torch.Generator())
    before = made.dequantised()[0, :RUN].clone()
    place = Nvfp4RowsPlace(made, RUN, 192, order, rounds=True)
    assert place.shape == (192, COLUMNS)
    place.copy(rows)
    Nvfp4RowsPlace(read, RUN, 192, order).copy_packed(packed, scales, matrix_scale)
    values = torch.empty(192, COLUMNS)
    stored_values = dequantise(packed, scales.float() * matrix_scale)
    if order is None:
        values = stored_values
    else:
        order.copy(values, stored_values)
    for into in (made, read):
        assert torch.allclose(into.dequantised()[0, RUN:], values, rtol=1e-6)
    assert torch.equal(made.dequantised()[0, :RUN], before)


def test_a_matrix_is_not_rounded_unasked() -> None:
    rows = Nvfp4Experts.empty(1, (RUN,), COLUMNS, torch.device("cpu"))
    with pytest.raises(ValueError, match="a matrix in NVFP4 would be rounded"):
        Nvfp4RowsPlace(rows, 0, RUN).copy(torch.randn(RUN, COLUMNS))
