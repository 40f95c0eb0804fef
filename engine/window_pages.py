"""Window pages: where the K and V of layers within a window lie in a pass. Pure.

A state slot has a ring of window pages: page ``i`` of its sequence is window page
``i % ring_pages`` of the slot. Decode steps and short chunks of prompts write there: the pages that
they overwrite are behind the window. A longer chunk would overwrite pages that its first tokens
still read. So its tokens have *work pages*, which follow the window pages of all slots, and the
last of them are copied to the ring behind the pass. Kept states get their pages then, too.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from engine.batch import Row
from transport.wire.layout import CHUNK_ALIGNMENT, CacheLayout, PoolSize

WORK_TOKENS = 1024
"""The fewest tokens of a pass for which there are work pages."""
SPARE_PAGES = 16
"""Work pages beyond those of a whole pass: two for each chunk that begins and ends within a
page."""

Copy = tuple[int, int]
"""Source and target of a copied window page."""


@dataclass(frozen=True)
class PassPages:
    """The window pages of one pass. ``tables``: the block table of each prompt. ``before``: copies
    that precede the pass. Behind it, pages are copied to the slots of ``kept`` states first, then
    ``stored`` in the prompts' own slots. No page of a list is both source and target."""

    tables: list[np.ndarray] = field(default_factory=list)
    before: list[Copy] = field(default_factory=list)
    kept: list[Copy] = field(default_factory=list)
    stored: list[Copy] = field(default_factory=list)

    @property
    def after(self) -> tuple[list[Copy], ...]:
        return self.kept, self.stored


def num_work_pages(layout: CacheLayout, max_prompt_tokens: int) -> int:
    """Number of work pages of a worker whose passes have up to ``max_prompt_tokens``."""
    if not layout.ring_pages:
        return 0
    return layout.pages_for(max(max_prompt_tokens, WORK_TOKENS)) + SPARE_PAGES


class WindowPages:
    """The window pages of a worker's slots, and its work pages, by page id."""

    def __init__(self, layout: CacheLayout, pools: PoolSize) -> None:
        self._layout, self._ring = layout, layout.ring_pages
        self._first_work = layout.num_slots(pools) * self._ring
        self._num_work = pools.num_work_pages

    @property
    def longest_chunk(self) -> int:
        """The most tokens of a chunk for which there are work pages: a multiple of 64."""
        most = (self._num_work - 1) * self._layout.page_size
        return most // CHUNK_ALIGNMENT * CHUNK_ALIGNMENT

    def in_ring(self, state_slot: int, page: int) -> int:
        """The window page of a slot for this page of its sequence."""
        return state_slot * self._ring + page % self._ring

    def readable(self, num_tokens: int) -> range:
        """The pages that the tokens behind the first ``num_tokens`` may read."""
        size = self._layout.page_size
        first = max(0, num_tokens + 1 - self._layout.window) // size
        return range(first, self._layout.pages_for(num_tokens))

    def num_work(self, row: Row) -> int:
        """Number of work pages that a row needs; 0 if it writes to its slot's ring."""
        num_pages = self._layout.pages_for(row.start + row.length)
        if num_pages - self.readable(row.start).start <= self._ring:
            return 0
        return num_pages - row.start // self._layout.page_size

    def groups(self, rows: Sequence[tuple[int, Row]]) -> Iterator[list[tuple[int, Row]]]:
        """Divide rows into groups that have enough work pages, in the order of the rows."""
        group: list[tuple[int, Row]] = []
        used = 0
        for index, row in rows:
            num_work = self.num_work(row)
            if group and used + num_work > self._num_work:
                yield group
                group, used = [], 0
            group.append((index, row))
            used += num_work
        if group:
            yield group

    def of_pass(self, rows: Sequence[Row]) -> PassPages:
        """The window pages of a pass of ``rows``. Decode rows use the rings of their slots."""
        pages, free = PassPages(), self._first_work
        for row in rows:
            if row.token_ids is None:
                continue
            num_work = self.num_work(row)
            self._add(pages, row, free, num_work)
            free += num_work
        assert free <= self._first_work + self._num_work, "more prompts than work pages"
        return pages

    def _add(self, pages: PassPages, row: Row, first_work: int, num_work: int) -> None:
        size, end = self._layout.page_size, row.start + row.length
        table = row.state_slot * self._ring + np.arange(self._layout.pages_for(end)) % self._ring
        if num_work:
            first = row.start // size
            table[first:] = first_work + np.arange(num_work)
            if row.start % size:
                pages.before.append((self.in_ring(row.state_slot, first), first_work))
            pages.stored.extend(
                (int(table[page]), self.in_ring(row.state_slot, page))
                for page in self.readable(end)
                if page >= first
            )
        if row.keep is not None:
            slot, readable = row.keep.state_slot, self.readable(row.start + row.keep.num_tokens)
            pages.kept.extend((int(table[page]), self.in_ring(slot, page)) for page in readable)
        pages.tables.append(table)
