"""The block tables of all state slots on the device. Only new pages are sent to them."""

from collections.abc import Sequence

import torch

from engine.batch import Row
from engine.upload import upload
from transport.wire.layout import CacheLayout


class BlockTables:
    """Block tables by state slot: ``ids`` int32 [state slots, pages of the longest sequence]."""

    def __init__(
        self, layout: CacheLayout, num_slots: int, max_seq_len: int, device: torch.device
    ) -> None:
        self._width = layout.pages_for(max_seq_len)
        self.ids = torch.zeros(num_slots, self._width, dtype=torch.int32, device=device)
        self._num_known = [0] * num_slots

    def forget(self, state_slot: int) -> None:
        """Clear a slot's table, because the slot has a new owner."""
        self._num_known[state_slot] = 0

    def add(self, rows: Sequence[Row]) -> None:
        """Send the pages of ``rows`` that are not in the tables yet."""
        places: list[int] = []
        pages: list[int] = []
        for row in rows:
            known, needed = self._num_known[row.state_slot], len(row.block_table)
            if known < needed:
                assert needed <= self._width, f"{needed} pages, in a table of {self._width}"
                first = row.state_slot * self._width
                places.extend(range(first + known, first + needed))
                pages.extend(row.block_table[known:needed])
                self._num_known[row.state_slot] = needed
        if places:
            new = upload(torch.tensor([places, pages], dtype=torch.int64), self.ids.device)
            self.ids.view(-1).index_copy_(0, new[0], new[1].int())
