"""Which rows of a decode step read the same pages, so that attention reads these once for all.

Rows share pages if their sequences begin with the same prefix, or if they are tokens of one
sequence: its last one and drafts. Attention cuts a row's context into chunks
(triton_attention_decode.py). A *tile* is a few rows that have chunks in common; an *item* is a
chunk of a tile. Rows have chunks in common only if their chunks are equally long, which depends on
each row's own length. So no row's result depends on the others.

The host may not know how many drafts were accepted, and so not the exact lengths: the GPU ignores a
row in a tile if its chunks have another length than the tile's, and the row reads all of them
itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
import torch

MAX_CHUNKS = 64
MIN_BLOCKS = 2
BLOCK = 64
"""Tokens of a block, unless a page has fewer."""
TILE_ROWS = 32
"""Rows of the product in which a tile's queries are multiplied with keys."""
CHUNK_BITS = 8
"""Bits of an item that are the chunk; the others are the tile."""


def blocks_each(num_tokens: int, block: int) -> int:
    """Blocks of a chunk of a context: 2^n or 3 * 2^n, so that rows of similar length have equal
    chunks, at most ``MAX_CHUNKS`` of them."""
    least = max(-(-num_tokens // (block * MAX_CHUNKS)), MIN_BLOCKS)
    power = 1 << (least - 1).bit_length()
    return power * 3 // 4 if power * 3 // 4 >= least else power


def rows_of_tile(num_heads: int, num_kv_heads: int) -> int:
    """Rows of a tile. Each brings a KV head's query heads, padded to a power of two."""
    group = num_heads // num_kv_heads
    return max(1, TILE_ROWS >> (group - 1).bit_length())


def num_planned(num_pages: int, page_size: int, chunk_tokens: int) -> int:
    """Chunks that are planned for a table of so many pages: some more than it has room for, so that
    the plan lasts while the sequence grows. Chunks past them are read by each row itself."""
    return min((num_pages * page_size // chunk_tokens // 8 + 1) * 8, MAX_CHUNKS)


@dataclass(frozen=True)
class Reading:
    """The adjacent rows ``[first, first + num_rows)`` of one sequence, with some ``num_tokens``
    tokens in the pages ``table``."""

    first: int
    num_rows: int
    table: Sequence[int]
    num_tokens: int

    @property
    def rows(self) -> range:
        return range(self.first, self.first + self.num_rows)


@dataclass(frozen=True)
class SharedReads:
    """What rows read together, int32 on the device.

    ``own`` [rows, 2]: the first chunk that a row reads itself, if its chunks have as many blocks as
    the second number says; otherwise the row reads all. ``tiles`` [tiles, 1 + rows of a tile]:
    blocks of a chunk, and the rows or -1. ``items`` [items]: tile << CHUNK_BITS | chunk;
    ``num_items`` [1] of them count.
    """

    own: torch.Tensor
    tiles: torch.Tensor
    items: torch.Tensor
    num_items: torch.Tensor


@dataclass
class ReadPlan:
    """The plan that becomes ``SharedReads``. A tile has up to ``tile_rows`` rows."""

    num_rows: int
    tile_rows: int
    page_size: int
    block: int
    own: np.ndarray = field(init=False)
    tiles: list[list[int]] = field(default_factory=list)
    items: list[np.ndarray] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.own = np.zeros((self.num_rows, 2), dtype=np.int32)

    def share(self, sequences: Sequence[Reading]) -> None:
        """Find what ``sequences`` have in common."""
        alike: dict[tuple[int, int], list[Reading]] = {}
        for each in sequences:
            blocks = blocks_each(each.num_tokens, self.block)
            alike.setdefault((blocks, each.table[0]), []).append(each)
        for (blocks, _), group in alike.items():
            self._cut(group, blocks, 0)

    def _cut(self, group: Sequence[Reading], blocks: int, first: int) -> None:
        """Share chunks from ``first`` on of sequences that have all before it in common."""
        if len(group) == 1:
            alone = group[0]
            if alone.num_rows > 1:
                tokens = blocks * self.block
                last = max(first, num_planned(len(alone.table), self.page_size, tokens))
                self._add(list(alone.rows), blocks, first, last)
                first = last
            self.own[alone.first : alone.first + alone.num_rows] = first, blocks
            return
        num_common = min(_num_common(group[0].table, each.table) for each in group[1:])
        last = num_common * self.page_size // (blocks * self.block)
        if last > first:
            self._add([row for each in group for row in each.rows], blocks, first, last)
        last = max(first, last)
        low, high = (self._page_of(chunk, blocks) for chunk in (last, last + 1))
        parts: dict[tuple[int, ...], list[Reading]] = {}
        for each in group:
            pages = tuple(each.table[low:high])
            if len(pages) < high - low:
                pages = (-1, each.first)  # no page has this number
            parts.setdefault(pages, []).append(each)
        for part in parts.values():
            self._cut(part, blocks, last)

    def _page_of(self, chunk: int, blocks: int) -> int:
        """The first page that lies behind the beginning of ``chunk``."""
        return -(-chunk * blocks * self.block // self.page_size)

    def _add(self, rows: Sequence[int], blocks: int, first: int, last: int) -> None:
        """Read chunks ``[first, last)`` of ``rows`` together, in tiles of similar size."""
        num_tiles, low = -(-len(rows) // self.tile_rows), len(self.tiles)
        ends = [*accumulate((len(rows) + i) // num_tiles for i in range(num_tiles))]
        for begin, end in zip([0, *ends], ends, strict=False):
            absent = [-1] * (self.tile_rows - (end - begin))
            self.tiles.append([blocks, *rows[begin:end], *absent])
        # Tiles that read the same chunk come one behind the other: they find it in the L2 cache.
        tiles = np.arange(low, low + num_tiles, dtype=np.int32) << CHUNK_BITS
        chunks = np.arange(first, last, dtype=np.int32)
        self.items.append((chunks[:, None] | tiles[None, :]).ravel())


def _num_common(one: Sequence[int], other: Sequence[int]) -> int:
    """Number of pages at the beginning that both tables have."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
