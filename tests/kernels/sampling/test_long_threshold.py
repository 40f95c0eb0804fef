"""The kernels of long filters against torch_sampling.threshold, on what is hard."""

import pytest
import torch

from engine.kernels.sampling.triton_long_threshold import lowest_kept_of_all
from tests.kernels.sampling import filters
from tests.kernels.sampling.filters import Settings

TILE = 256
NEG_INF = float("-inf")


def lowest(
    logits: torch.Tensor,
    settings: Settings,
    num_ids: int | None = None,
    rows: list[int] | None = None,
    tile: int = TILE,
) -> torch.Tensor:
    """1000 for rows that are not among ``rows``, by default all."""
    device, num_rows = logits.device, len(logits)
    columns = filters.tables(settings[::-1], device)  # the last row has the first slot
    slots = torch.arange(num_rows - 1, -1, -1, device=device)
    wanted = list(range(num_rows)) if rows is None else rows
    index = torch.tensor(wanted, dtype=torch.int64, device=device)
    found = torch.full((num_rows,), 1000.0, device=device)
    any_top_k = any(top_k > 0 for _, top_k, _, _ in settings)
    lowest_kept_of_all(
        logits, num_ids or logits.shape[1], *columns, slots, index, found,
        any_top_k=any_top_k, tile=tile,
    )  # fmt: skip
    return found


def truth(logits: torch.Tensor, settings: Settings) -> torch.Tensor:
    return filters.truth(logits, settings, short=False)


def assert_same(logits: torch.Tensor, settings: Settings) -> None:
    """-inf is as good as the smallest logit."""
    temperature, *_ = filters.tables(settings, logits.device)
    smallest = (logits / temperature.unsqueeze(1)).min(1).values
    found = lowest(logits, settings).maximum(smallest)
    filters.assert_same(found, truth(logits, settings), settings)


@pytest.mark.parametrize("num_ids", [1, 256, 700])
@pytest.mark.parametrize("scale", [0.01, 2.0, 30.0])
def test_random_logits_and_settings(num_ids: int, scale: float, device: torch.device) -> None:
    settings = [
        (1.0, 0, 0.95, 0.0), (0.6, 0, 0.9, 0.0), (1.7, -1, 0.5, 0.0), (0.7, 0, 1e-9, 0.0),
        (1.0, 0, 0.9, 0.1), (2.0, 0, 1.0, 0.5), (0.3, 0, 0.3, 1.0), (1.0, 0, 0.99, 0.01),
        (1.0, 100, 0.95, 0.0), (0.6, 65, 1.0, 0.0), (1.7, 300, 0.5, 0.0), (1.0, 600, 0.99, 0.2),
        (1.0, 200, 0.0, 0.0), (1.0, 5_000, 0.9, 0.0),
    ]  # fmt: skip
    torch.manual_seed(num_ids)
    assert_same(torch.randn(len(settings), num_ids, device=device) * scale, settings)


def test_ties(device: torch.device) -> None:
    settings = [(1.0, k, p, 0.0) for k in (0, 70, 300) for p in (0.33, 0.7, 1.0)]
    torch.manual_seed(0)
    few_values = torch.randint(-2, 3, (len(settings), 500), device=device).float()
    assert_same(few_values, settings)
    assert_same(torch.full_like(few_values, -3.25), settings)
    # top_k's last one is one of several equal ones, which stand in different tiles.
    few_values[:, ::5] = 9.0
    few_values[:, [3, 400]] = 10.0
    assert_same(few_values, settings)
    zeros = torch.zeros_like(few_values)
    zeros[:, ::2] = -0.0
    assert_same(zeros, settings)


def test_infinite_and_nan_logits(device: torch.device) -> None:
    settings = [(1.0, 0, 0.9, 0.0), (0.5, 100, 1.0, 0.0), (1.0, 80, 0.9, 0.2)]
    logits = torch.randn(3, 301, device=device)
    logits[:, 90:] = NEG_INF
    assert_same(logits, settings)
    logits[:, 50:] = NEG_INF  # fewer than top_k
    assert_same(logits, settings)
    assert lowest(torch.full_like(logits, NEG_INF), settings).tolist() == [NEG_INF] * 3
    for nan in (float("nan"), -float("nan")):
        logits[:, 300] = nan
        assert lowest(logits, settings).isnan().all()


def test_what_lies_past_the_valid_ids_does_not_count(device: torch.device) -> None:
    settings = [(1.0, 0, 0.9, 0.0), (1.0, 100, 0.99, 0.0)]
    for num_ids in (113, 256, 701):
        logits = torch.randn(2, 704, device=device)
        expected = truth(logits[:, :num_ids], settings)
        logits[:, num_ids:] = float("inf")
        assert torch.equal(lowest(logits, settings, num_ids), expected)


def test_only_the_named_rows_are_written(device: torch.device) -> None:
    settings = [(1.0, 0, 0.9, 0.0), (0.0, 20, 0.9, 0.0), (1.5, 0, 0.5, 0.0), (1.0, 0, 0.9, 0.0)]
    logits = torch.randn(4, 600, device=device)
    expected = truth(logits, settings)
    expected[[1, 3]] = 1000.0
    assert torch.equal(lowest(logits, settings, rows=[2, 0]), expected)
    assert torch.equal(lowest(logits, settings, rows=[]), torch.full_like(expected, 1000.0))


@pytest.mark.parametrize("top_k", [0, 200])
def test_a_row_depends_neither_on_tiles_nor_on_other_rows(top_k: int, device: torch.device) -> None:
    logits = torch.randn(3, 900, device=device)
    settings = [(0.9, top_k, 0.8, 0.0)] * 3
    together = lowest(logits, settings)
    alone = torch.cat([lowest(logits[i : i + 1], settings[:1]) for i in range(3)])
    assert torch.equal(together, alone)
    assert torch.equal(together, lowest(logits, settings, tile=1024))
    assert torch.equal(together, truth(logits, settings))
