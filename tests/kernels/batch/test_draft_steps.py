"""The bookkeeping of steps with drafts against the same in Python."""

import random

import pytest
import torch

from engine.kernels.batch.triton_drafts import (
    Placed,
    SlotTables,
    StepRows,
    Uncertain,
    accept,
    place_draft,
    place_verified,
)

NUM_SLOTS, MAX_DRAFTS = 6, 3


class Steps:
    """Rows of slots 4, padding, 1 and 0."""

    def __init__(self, device: torch.device, tokens_each: int) -> None:
        self.draw, self.tokens_each = random.Random(3), tokens_each
        self.slots, self.num_drafts = [4, -1, 1, 0], [2, 0, 0, 1]
        self.starts, self.rooms = [-1, 0, 7, -1], [64, 0, 64, 21]

        def row(values: list[int]) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.int32, device=device)

        self.rows = StepRows(*map(row, (self.slots, self.num_drafts, self.starts, self.rooms)))
        self.lengths, self.next = [11, 5, 9, 9, 30, 9], [self.id() for _ in range(NUM_SLOTS)]
        self.lengths[0] = 20
        self.drafts = [[self.id() for _ in range(NUM_SLOTS)] for _ in range(MAX_DRAFTS)]
        self.tables = SlotTables(
            row(self.lengths),
            row([1] * NUM_SLOTS),
            torch.tensor(self.drafts, device=device),
            torch.tensor(self.next, device=device),
        )
        self.placed = Placed.allocate(4 * tokens_each, device)

    def id(self) -> int:
        return self.draw.randrange(1000)


def test_a_step_feeds_the_next_token_and_its_drafts(device: torch.device) -> None:
    steps = Steps(device, 3)
    place_verified(steps.rows, steps.tables, steps.placed, 3)
    # Slot 1 has just come, with 7 tokens; slot 0 has 20 of 21 tokens: no room for its draft.
    assert steps.tables.lengths.tolist() == [20, 7, 9, 9, 30, 9]
    assert steps.tables.pending.tolist() == [1, 0, 1, 1, 1, 1]
    placed = steps.placed
    assert placed.slots.tolist() == [4, 4, 4, -1, -1, -1, 1, -1, -1, 0, -1, -1]
    sampled = [4, 4, 4, -1, -1, -1, 1, -1, -1, 0, 0, -1]
    assert placed.sample_slots.tolist() == sampled, "also past the pages"
    assert placed.positions.tolist() == [30, 31, 32, -1, -1, -1, 7, -1, -1, 20, -1, -1]
    assert placed.ends.tolist() == [31, 32, 33, 0, 0, 0, 8, 0, 0, 21, 0, 0]
    assert placed.held.tolist() == [4, 4, 4, 0, 0, 0, 1, 1, 1, 0, 0, 0]
    fed = [steps.next[4], steps.drafts[0][4], steps.drafts[1][4]]
    assert placed.ids.tolist() == [*fed, 0, 0, 0, steps.next[1], 0, 0, steps.next[0], 0, 0]
    assert placed.sample_positions.tolist()[:3] == [31, 32, 33]


def test_drafts_are_accepted_up_to_the_first_that_differs(device: torch.device) -> None:
    steps = Steps(device, 3)
    place_verified(steps.rows, steps.tables, steps.placed, 3)
    ids = [steps.drafts[0][4], 1001, 1002, -1, -1, -1, 1003, -1, -1, steps.drafts[0][0], -1, -1]
    sampled = torch.tensor(ids, device=device)
    last, num_out = (torch.zeros(4, dtype=torch.int64, device=device) for _ in range(2))
    on_host = torch.full_like(num_out, -5)
    accept(steps.rows, sampled, steps.tables, steps.placed, last, num_out, 3, on_host=on_host)
    assert on_host.equal(num_out)
    assert num_out.tolist()[0] == 2
    assert num_out.tolist()[2:] == [1, 2], "the last row's draft agrees; its id is not there yet"
    assert steps.tables.lengths.tolist() == [22, 8, 9, 9, 32, 9]
    assert [steps.tables.pending.tolist()[i] for i in (0, 1, 4)] == [1, 0, 1]
    assert [steps.tables.next_token.tolist()[i] for i in (1, 4)] == [1003, 1001]
    assert last.tolist()[0] == 1
    placed = steps.placed
    assert placed.positions.tolist()[:3] == [30, 31, -1]
    assert placed.ids.tolist()[:3] == [ids[0], 1001, 0], "what follows each position"


@pytest.mark.parametrize("aborted", [False, True])
def test_a_step_that_may_be_aborted_has_stored_no_token(
    aborted: bool, device: torch.device
) -> None:
    steps = Steps(device, 3)
    place_verified(steps.rows, steps.tables, steps.placed, 3)
    before = [table.tolist() for table in (steps.tables.lengths, steps.tables.drafts)]
    fed, word = steps.placed.ids.clone(), torch.tensor([2 * aborted], dtype=torch.int32)
    steps.tables.next_token.fill_(999)  # as the sampler leaves it
    ids = [steps.drafts[0][4], 1001, 1002, -1, -1, -1, 1003, -1, -1, 1004, -1, -1]
    sampled = torch.tensor(ids, device=device)
    last, num_out = (torch.zeros(4, dtype=torch.int64, device=device) for _ in range(2))
    accept(
        steps.rows, sampled, steps.tables, steps.placed, last, num_out, 3,
        uncertain=Uncertain(word.to(device), fed),
    )  # fmt: skip
    pending = [steps.tables.pending.tolist()[slot] for slot in (4, 1, 0)]
    next_token = [steps.tables.next_token.tolist()[slot] for slot in (4, 1, 0)]
    if not aborted:
        assert (pending, next_token) == ([2, 1, 1], [1001, 1003, 1004])
        assert [num_out.tolist()[row] for row in (0, 2, 3)] == [2, 1, 1]
        assert steps.rows.slots.tolist() == steps.slots
        return
    assert pending == [0, 0, 0]
    assert next_token == [steps.next[slot] for slot in (4, 1, 0)]
    assert [steps.tables.lengths.tolist(), steps.tables.drafts.tolist()] == before
    assert [num_out.tolist()[row] for row in (0, 2, 3)] == [0, 0, 0]
    assert steps.placed.slots.eq(-1).all(), "the draft layer writes nothing"
    place_draft(steps.rows, steps.tables, steps.placed, 0)
    assert steps.placed.sample_slots[:4].eq(-1).all(), "nor are there other drafts"


def test_output_past_the_pages_is_not_placed_for_the_draft_layer(device: torch.device) -> None:
    steps = Steps(device, 1)
    steps.rows.rooms[3] = 20  # Slot 0 has 20 tokens: its sequence ended with the step before.
    place_verified(steps.rows, steps.tables, steps.placed, 1)
    sampled = torch.tensor([1001, -1, 1002, 1003], device=device)
    last, num_out = (torch.zeros(4, dtype=torch.int64, device=device) for _ in range(2))
    accept(steps.rows, sampled, steps.tables, steps.placed, last, num_out, 1)
    assert steps.placed.slots.tolist() == [4, -1, 1, -1]
    assert steps.placed.positions.tolist() == [30, -1, 7, -1], "KV there would be another's"


def test_a_further_draft_stands_behind_the_one_before(device: torch.device) -> None:
    steps = Steps(device, 1)
    place_draft(steps.rows, steps.tables, steps.placed, 0)
    assert steps.placed.positions.tolist() == [29, -1, 4, 19], "where the layer was computed last"
    assert steps.placed.sample_positions.tolist()[0] == 31, "the draft's own index"
    place_draft(steps.rows, steps.tables, steps.placed, 2)
    assert steps.placed.positions.tolist() == [31, -1, 6, -1], "slot 0 has no room for 21"
    assert steps.placed.ids.tolist() == [steps.drafts[1][4], 0, steps.drafts[1][1], 0]
    steps.rows.rooms[0] = 29
    place_draft(steps.rows, steps.tables, steps.placed, 0)
    assert steps.placed.slots.tolist() == [-1, -1, 1, 0], "slot 4 stands past its pages"
