"""What the rows of decode graphs read together, as graphs have it in static memory."""

from collections.abc import Sequence

import numpy as np
import torch

from engine.batch import Row
from engine.kernels.shared_reads import (
    BLOCK,
    MAX_CHUNKS,
    Reading,
    ReadPlan,
    SharedReads,
    blocks_each,
    num_planned,
)
from engine.upload import aligned_starts
from transport.wire.layout import CacheLayout

MIN_TOKENS = 32_768
"""Tokens of all rows below which sharing gains nothing: the GPU reads them all at once."""


class SharedPages:
    """The memory that graphs of up to ``num_rows`` rows read, and what was written to it last.

    ``tile_rows``: the most rows of a tile (shared_reads.py).
    """

    def __init__(
        self, layout: CacheLayout, tile_rows: int, num_rows: int, device: torch.device
    ) -> None:
        self._page_size, self._block = layout.page_size, min(BLOCK, layout.page_size)
        self._tile_rows, self._num_rows = tile_rows, num_rows
        # A tile has two rows or more, so that there are fewer items than chunks of rows.
        sizes = 2 * num_rows, 1, num_rows * (1 + tile_rows), num_rows * MAX_CHUNKS
        self._starts = aligned_starts(sizes, torch.int32)
        self._memory = torch.zeros(self._starts[-1], dtype=torch.int32, device=device)
        own, num_items, tiles, items = (
            self._memory[start : start + size]
            for start, size in zip(self._starts, sizes, strict=False)
        )
        self.reads = SharedReads(own.view(-1, 2), tiles.view(-1, 1 + tile_rows), items, num_items)
        self._written: tuple[object, ...] = ()
        self._is_empty = True

    def forget(self) -> None:
        """Drop the plan, because a state slot has a new owner."""
        self._written = ()

    def write(self, rows: Sequence[Row], tokens_each: int) -> None:
        """Describe a step with ``tokens_each`` tokens of each of ``rows``, which are adjacent."""
        ends = [row.start + tokens_each for row in rows]
        alone = tokens_each == 1 and len({row.block_table[0] for row in rows}) == len(rows)
        if alone or tokens_each * sum(ends) < MIN_TOKENS:
            if not self._is_empty:
                self._clear()
            return
        if (now := (tokens_each, *map(self._what, rows, ends))) == self._written:
            return
        self._written = now
        plan = ReadPlan(self._num_rows, self._tile_rows, self._page_size, self._block)
        plan.share(
            [
                Reading(i * tokens_each, tokens_each, row.block_table, end)
                for i, (row, end) in enumerate(zip(rows, ends, strict=True))
            ]
        )
        self._copy(plan)

    def _what(self, row: Row, end: int) -> tuple[int, int, int]:
        """On what a plan depends."""
        blocks = blocks_each(end, self._block)
        num = num_planned(len(row.block_table), self._page_size, blocks * self._block)
        return row.state_slot, blocks, num

    def _clear(self) -> None:
        self._memory[: self._starts[2]].zero_()
        self._written, self._is_empty = (), True

    def _copy(self, plan: ReadPlan) -> None:
        items = np.concatenate(plan.items) if plan.items else np.zeros(0, dtype=np.int32)
        own, num_items, tiles, first = self._starts[:4]
        # A fresh pinned tensor a step: the one before may still be on its way.
        host = torch.zeros(first + len(items), dtype=torch.int32)
        of_host = host.numpy()
        of_host[own : own + plan.own.size] = plan.own.ravel()
        of_host[num_items] = len(items)
        if plan.tiles:
            of_host[tiles : tiles + len(plan.tiles) * (1 + self._tile_rows)] = np.array(
                plan.tiles, dtype=np.int32
            ).ravel()
        of_host[first:] = items
        pinned = host.pin_memory() if self._memory.is_cuda else host
        self._memory[: len(host)].copy_(pinned, non_blocking=True)
        self._is_empty = not plan.items
