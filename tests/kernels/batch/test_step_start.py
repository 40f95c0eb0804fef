"""What a decode step begins with, against plain indexing."""

import pytest
import torch

from engine.kernels.batch import triton_step_start
from engine.kernels.batch.triton_step_start import embed, row_tables, start_step

PAGE = 64


@pytest.fixture
def tables(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> torch.Tensor:
    """Of five state slots, in more than one program's pages."""
    monkeypatch.setattr(triton_step_start, "PAGES", 4)
    return torch.arange(5 * 10, dtype=torch.int32, device=device).view(5, 10)


def same_pages(
    found: torch.Tensor, tables: torch.Tensor, slots: list[int], ends: list[int]
) -> None:
    for row, (slot, end) in enumerate(zip(slots, ends, strict=True)):
        pages = -(-end // PAGE)
        assert found[row, :pages].tolist() == tables[slot, :pages].tolist()


def test_rows_of_a_step(tables: torch.Tensor, device: torch.device) -> None:
    slots, ends = [3, 0, 4, -1, -1], [1, 640, 65, 0, 0]
    next_token = torch.tensor([7, 8, 9, 1 << 40, 11], device=device)
    fed = torch.full((5,), -5, device=device)
    step = torch.tensor([slots, ends], dtype=torch.int32, device=device)
    started = start_step(step[0], step[1], next_token, tables, PAGE, fed)
    assert fed.tolist() == [1 << 40, 7, 11, 7, 7]
    assert started.held.tolist() == [3, 0, 4, 0, 0]
    assert started.positions.tolist() == [0, 639, 64, -1, -1]
    assert started.ends.tolist() == ends
    same_pages(started.tables, tables, slots, ends)


def test_row_tables(tables: torch.Tensor, device: torch.device) -> None:
    held, ends = [2, 2, 0, 4], [64, 65, 0, 257]
    found = row_tables(
        tables,
        torch.tensor(held, device=device),
        torch.tensor(ends, dtype=torch.int32, device=device),
        PAGE,
    )
    same_pages(found, tables, held, ends)


@pytest.mark.parametrize("kind", [torch.int32, torch.int64])
def test_embed(kind: torch.dtype, device: torch.device) -> None:
    weight = torch.randn(11, 96, device=device).bfloat16()
    ids = torch.tensor([10, 0, 3, 3], dtype=kind, device=device)
    assert embed(ids, weight).equal(weight[ids.long()])
    assert embed(ids[:0], weight).shape == (0, 96)
