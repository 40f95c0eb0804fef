"""Where tokens of chunks with different lengths lie side by side."""

import pytest
import torch

from engine.ragged import BLOCK, BehindHistory, Blocks

CPU = torch.device("cpu")


@pytest.mark.parametrize("lens", [(1,), (64,), (65,), (3, 200, 64, 1), (5, 9, 2), (128, 64)])
def test_every_token_has_one_place(lens: tuple[int, ...]) -> None:
    blocks = Blocks.of(lens, CPU)
    assert blocks.size == min(BLOCK, max(lens))
    assert sum(blocks.active) * blocks.size == len(blocks.tokens)
    assert torch.equal(blocks.tokens[blocks.places], torch.arange(sum(lens)))
    padding = torch.zeros(len(blocks.tokens), dtype=torch.bool)
    if blocks.padding is not None:
        padding = blocks.padding.flatten()
    assert sorted(blocks.places.tolist()) == (~padding).nonzero().flatten().tolist()
    # Padding repeats a token of its own chunk, so one sequence's NaN never meets another.
    row_of = torch.repeat_interleave(torch.arange(len(lens)), torch.tensor(lens))
    rows = row_of[blocks.tokens].view(-1, blocks.size)
    assert bool((rows == rows[:, :1]).all())
    assert torch.equal(rows[: len(lens), 0], blocks.order)
    assert list(blocks.active) == sorted(blocks.active, reverse=True)


def test_history_lies_before_its_chunk() -> None:
    layout = BehindHistory.of((2, 5), 3, CPU)
    assert layout.history.tolist() == [0, 1, 2, 5, 6, 7]
    assert layout.tokens.tolist() == [3, 4, 8, 9, 10, 11, 12]
    assert layout.last.tolist() == [2, 3, 4, 10, 11, 12]
