"""The kernels of top_k, top_p and min_p against torch_sampling.threshold, on what is hard."""

import pytest
import torch

from engine.kernels.sampling.triton_threshold import ThresholdWorkspace, lowest_kept
from tests.kernels.sampling import filters
from tests.kernels.sampling.filters import Settings

TILE = 256
NEG_INF = float("-inf")


def lowest(
    logits: torch.Tensor,
    settings: Settings,
    num_ids: int | None = None,
    slots: list[int] | None = None,
) -> torch.Tensor:
    """``settings`` are of the state slots, by default rows'."""
    device, num_ids = logits.device, num_ids or logits.shape[1]
    workspace = ThresholdWorkspace.allocate(len(logits) + 1, num_ids, device, tile=TILE)
    workspace.best.fill_(0x7FFFFFFF)
    return lowest_kept(
        logits, num_ids, *filters.tables(settings, device),
        torch.tensor(slots or list(range(len(logits))), device=device), workspace, tile=TILE,
    )  # fmt: skip


def truth(logits: torch.Tensor, settings: Settings) -> torch.Tensor:
    return filters.truth(logits, settings, short=True)


def assert_same(logits: torch.Tensor, settings: Settings) -> None:
    filters.assert_same(lowest(logits, settings), truth(logits, settings), settings)


@pytest.mark.parametrize("num_ids", [1, 256, 700])
def test_random_logits_and_settings(num_ids: int, device: torch.device) -> None:
    settings = [
        (1.0, 20, 0.95, 0.0), (0.6, 64, 1.0, 0.0), (1.7, 1, 0.5, 0.0), (0.7, 63, 1e-9, 0.0),
        (1.0, 40, 0.9, 0.1), (2.0, 64, 1.0, 0.5), (0.3, 5, 0.3, 1.0), (1.0, 2, 0.99, 0.01),
    ]  # fmt: skip
    logits = torch.randn(len(settings), num_ids, device=device)
    for scale in (0.01, 10.0):
        assert_same(logits * scale, settings)


def test_ties(device: torch.device) -> None:
    settings = [(1.0, k, p, 0.0) for k in (1, 20, 64) for p in (0.33, 1.0)]
    few_values = torch.randint(-2, 3, (len(settings), 500), device=device).float()
    assert_same(few_values, settings)
    assert_same(torch.full_like(few_values, -3.25), settings)
    # The k-th best is one of several equal ones, which stand in different tiles.
    few_values[:, ::40] = 9.0
    few_values[:, [3, 400]] = 10.0
    assert_same(few_values, settings)
    zeros = torch.zeros_like(few_values)
    zeros[:, ::2] = -0.0
    assert_same(zeros, settings)


def test_infinite_and_nan_logits(device: torch.device) -> None:
    settings = [(1.0, 20, 0.9, 0.0), (0.5, 64, 1.0, 0.0), (1.0, 20, 0.9, 0.2)]
    logits = torch.randn(3, 301, device=device)
    logits[:, 5:] = NEG_INF
    assert_same(logits, settings)
    assert lowest(torch.full_like(logits, NEG_INF), settings).tolist() == [NEG_INF] * 3
    for nan in (float("nan"), -float("nan")):
        logits[:, 300] = nan
        assert lowest(logits, settings).isnan().all()


def test_what_lies_past_the_valid_ids_does_not_count(device: torch.device) -> None:
    settings = [(1.0, 20, 0.9, 0.0), (1.0, 64, 1.0, 0.0)]
    for num_ids in (13, 256, 701):
        logits = torch.randn(2, 704, device=device)
        expected = truth(logits[:, :num_ids], settings)
        logits[:, num_ids:] = float("inf")
        assert torch.equal(lowest(logits, settings, num_ids), expected)


def test_rows_without_short_filters_keep_everything(device: torch.device) -> None:
    settings = [
        (1.0, 0, 1.0, 0.0), (1.0, 65, 0.9, 0.0), (0.0, 20, 0.9, 0.0), (1.0, 0, 0.9, 0.1),
        (1.0, 20, 0.9, 0.0),
    ]  # fmt: skip
    slots = [4, 0, 1, -1, 2, 3, 4]
    logits = torch.randn(len(slots), 600, device=device)
    found = lowest(logits, settings, slots=slots)
    rows = torch.tensor([slot == 4 for slot in slots], device=device)
    assert torch.equal(found[rows], truth(logits[rows], [settings[4]] * 2))
    assert (found[~rows] == NEG_INF).all()


def test_a_row_does_not_depend_on_tiles_and_other_rows(device: torch.device) -> None:
    logits = torch.randn(3, 900, device=device)
    settings = [(0.9, 30, 0.8, 0.0)] * 3
    together = lowest(logits, settings)
    alone = torch.cat([lowest(logits[i : i + 1], settings[:1]) for i in range(3)])
    assert torch.equal(together, alone)
    assert torch.equal(together, truth(logits, settings))
