"""Block tables on the device: each state slot has a row, and only new pages are written."""

import pytest
import torch

from engine.batch import Row
from engine.block_tables import BlockTables
from transport.wire.layout import CacheLayout

LAYOUT = CacheLayout("float32", 16, 1, 1, 1, 1, 1, 1, 1, 1, 1)


def tables() -> BlockTables:
    return BlockTables(LAYOUT, num_slots=2, max_seq_len=48, device=torch.device("cpu"))


def test_a_table_grows_with_its_sequence_and_starts_anew_with_the_next() -> None:
    found = tables()
    found.add([Row(0, [5, 6], 20, None), Row(1, [7], 3, None)])
    found.add([Row(0, [5, 6, 8], 33, None)])
    assert found.ids.tolist() == [[5, 6, 8], [7, 0, 0]]
    found.forget(0)
    found.add([Row(0, [9], 1, None)])
    assert found.ids[:, 0].tolist() == [9, 7]


def test_pages_beyond_the_longest_sequence_are_not_written_to_the_next_table() -> None:
    found = tables()
    with pytest.raises(AssertionError, match="4 pages, in a table of 3"):
        found.add([Row(0, [1, 2, 3, 4], 48, None)])
    assert not found.ids.any()
