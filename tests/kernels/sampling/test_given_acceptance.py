"""Drafts accepted with a given probability: the kernel against its reference, and the shares."""

import pytest
import torch

from engine.kernels.batch.triton_drafts import Uncertain, accept, place_verified
from engine.kernels.sampling.torch_given_acceptance import uniform
from engine.sampling.given_acceptance import GivenAcceptance
from tests.kernels.batch.test_draft_steps import Steps

NUM_SLOTS, MAX_DRAFTS, NUM_ROWS = 5, 3, 40


class Step:
    """Rows of random slots, of which every fourth verifies no draft, every seventh chose its draft,
    and one has bad logits."""

    def __init__(self, device: torch.device, probability: float) -> None:
        ints = torch.randint(-(2**62), 2**62, (NUM_SLOTS, 3), device=device)
        self.drafts = torch.randint(0, 3, (MAX_DRAFTS, NUM_SLOTS), device=device)
        self.slots = torch.randint(0, NUM_SLOTS, (NUM_ROWS,), device=device)
        self.positions = torch.randint(0, 2**40, (NUM_ROWS,), device=device)
        self.verified = torch.arange(NUM_ROWS, device=device) % 4 - 1
        self.chosen = torch.randint(100, 1000, (NUM_ROWS,), device=device)
        self.fed = self.drafts[self.verified.clamp(min=0), self.slots]
        self.chosen[::7] = self.fed[::7]
        self.chosen[6] = -1
        self.given = GivenAcceptance(probability, self.drafts, self.verified, ints[:, 1])


@pytest.mark.parametrize("probability", [0.0, 0.3, 0.8, 1.0])
def test_the_kernel_decides_as_its_reference(probability: float, device: torch.device) -> None:
    step = Step(device, probability)
    expected = step.given.decided(step.chosen, step.slots, step.positions)
    on_host = torch.empty(NUM_ROWS, dtype=torch.int64, pin_memory=device.type == "cuda")
    on_host.copy_(step.chosen)
    step.given.decide(step.chosen, on_host, step.slots, step.positions)
    assert step.chosen.tolist() == on_host.tolist() == expected.tolist()


@pytest.mark.parametrize("probability", [0.0, 1.0])
def test_a_draft_is_the_token_exactly_if_it_is_accepted(
    probability: float, device: torch.device
) -> None:
    step = Step(device, probability)
    decided = step.given.decided(step.chosen, step.slots, step.positions)
    verifies = (step.verified >= 0) & (step.chosen >= 0)
    assert decided[~verifies].equal(step.chosen[~verifies])
    assert (decided == step.fed)[verifies].all() == bool(probability)
    assert (decided != step.fed)[verifies].all() == (not probability)
    assert decided[verifies].min() >= 0
    other = verifies & (step.chosen != step.fed)
    if not probability:
        assert decided[other].equal(step.chosen[other]), "the target's choice, if it is another id"


def test_the_draws_are_uniform_and_depend_on_seed_and_position_alone(device: torch.device) -> None:
    seeds = torch.arange(100, device=device).repeat_interleave(200) * 7_919
    positions = torch.arange(200, device=device).repeat(100)
    drawn = uniform(seeds, positions)
    assert drawn.min() > 0
    assert drawn.max() < 1
    for share in (0.1, 0.5, 0.8):
        assert float((drawn < share).float().mean()) == pytest.approx(share, abs=0.01)
    for within in (drawn.view(100, 200), drawn.view(100, 200).t()):
        neighbours = torch.stack((within[:, :-1].flatten(), within[:, 1:].flatten()))
        assert abs(float(torch.corrcoef(neighbours)[0, 1])) < 0.03
    some = torch.randperm(20_000, device=device)[:50]
    assert uniform(seeds[some], positions[some]).equal(drawn[some])


@pytest.mark.parametrize("aborted", [False, True])
def test_a_spread_step_advances_by_the_decided_tokens_unless_it_was_aborted(
    aborted: bool, device: torch.device
) -> None:
    """Rows of slots 4 (two drafts), padding, 1 (none) and 0 (one draft), three tokens each."""
    steps = Steps(device, 3)
    place_verified(steps.rows, steps.tables, steps.placed, 3)
    fed, before = steps.placed.ids.clone(), steps.tables.lengths.tolist()
    verified = torch.tensor([0, 1, -1, -1, -1, -1, -1, -1, -1, 0, -1, -1], device=device)
    chosen = torch.arange(2000, 2012, device=device)
    on_host = chosen.cpu().pin_memory() if device.type == "cuda" else chosen.clone()
    seeds = torch.arange(6, device=device)
    given = GivenAcceptance(1.0, steps.tables.drafts, verified, seeds)
    slots = steps.placed.sample_slots
    given.decide(chosen, on_host, slots, steps.placed.sample_positions)
    last, num_out = (torch.zeros(4, dtype=torch.int64, device=device) for _ in range(2))
    word = torch.tensor([2 * aborted], dtype=torch.int32, device=device)
    accept(
        steps.rows, chosen, steps.tables, steps.placed, last, num_out, 3,
        uncertain=Uncertain(word, fed),
    )  # fmt: skip
    next_token = [steps.tables.next_token.tolist()[slot] for slot in (4, 1, 0)]
    if aborted:
        assert [num_out.tolist()[row] for row in (0, 2, 3)] == [0, 0, 0]
        assert next_token == [steps.next[slot] for slot in (4, 1, 0)]
        assert steps.tables.lengths.tolist() == before
        return
    assert [num_out.tolist()[row] for row in (0, 2, 3)] == [3, 1, 2]
    assert next_token == [2002, 2006, 2010], "the target's own choice behind the accepted drafts"
    assert on_host.tolist()[:2] == [steps.drafts[0][4], steps.drafts[1][4]]
