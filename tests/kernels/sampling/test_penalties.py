"""Penalties of rows of logits, beside their PyTorch reference."""

import pytest
import torch

from engine.kernels.sampling.torch_sampling import penalised
from engine.kernels.sampling.triton_penalties import PenaltyTables, penalise
from engine.sampling.fed_drafts import FedDrafts

NUM_SLOTS, WIDTH, NUM_DRAFTS = 4, 2_604, 3


@pytest.mark.parametrize("num_ids", [1, 31, 2_600])
@pytest.mark.parametrize("in_place", [False, True])
def test_the_reference(num_ids: int, in_place: bool, device: torch.device) -> None:
    penalties = torch.tensor([[1.3, 0.5, 0.25], [1.0, 0.0, 0.0], [0.7, -1.0, 0.1], [1.0, 0, 1.5]])
    in_prompt = torch.rand(NUM_SLOTS, WIDTH) < 0.3
    counts = torch.randint(0, 4, (NUM_SLOTS, WIDTH), dtype=torch.int32)
    drafts = torch.randint(0, num_ids, (NUM_DRAFTS, NUM_SLOTS))
    slots, places = torch.tensor([2, 2, 0, 1, 3, 3, 3]), [0, 1, 3, 2, 1, 2, 3]
    logits = torch.randn(len(places), num_ids + 4)[:, :num_ids]
    fed = FedDrafts(drafts, places, lambda slot: [])
    expected = penalised(
        logits,
        in_prompt[slots, :num_ids],
        fed.counted(counts[slots, :num_ids], slots),
        *penalties[slots].unbind(1),
    )
    tables = PenaltyTables(*(each.to(device) for each in (penalties, in_prompt, counts)))
    given = logits.to(device)
    found = penalise(
        given, tables, slots.to(device), drafts.to(device), torch.tensor(places, device=device),
        in_place=in_place,
    )  # fmt: skip
    assert torch.equal(found.cpu(), expected)
    assert (found is given) == in_place


def test_rows_of_no_slot_are_left_alone(device: torch.device) -> None:
    tables = PenaltyTables(
        torch.tensor([[2.0, 1.0, 1.0]], device=device),
        torch.ones(1, 40, dtype=torch.bool, device=device),
        torch.ones(1, 40, dtype=torch.int32, device=device),
    )
    logits = torch.ones(2, 40, device=device)
    drafts = torch.full((2, 1), 7, device=device)
    penalise(logits, tables, torch.tensor([-1, 0], device=device), drafts, in_place=True)
    assert (logits[0] == 1).all()
    assert logits[1, 6].item() == 0.5 - 2.0
    assert logits[1, 7].item() == 0.5 - 4.0, "without places all drafts stand before"
