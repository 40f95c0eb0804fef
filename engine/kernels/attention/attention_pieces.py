"""How the attention of prompts behind a deep context is cut into pieces. Pure.

    context of a row   |  piece 0  |  piece 1  | ... |  rest, new tokens  |

The new tokens see all keys of a piece, so that each piece is an attention without a mask, which is
computed at a higher speed than one with it. New tokens come in chunks. What is left of a row's new
tokens is its *tail*, which is computed without pieces. A row that is not deep is all tail.

A library makes a plan for each shape, so LIBRARY has few shapes: pieces have PIECE_LENS keys, and
chunks CHUNK_LENS tokens. A long tail is padded to a chunk. OWN is for a kernel that takes any shape
of whole tiles: then the rest is shorter than a page, and there is no tail.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

PIECE_LENS = 32_768, 16_384, 8_192
CHUNK_LENS = 2_048, 1_024
LONGEST_TAIL = 640
"""A chunk of 1,024 takes as long as so many tokens without pieces."""
LONGEST_PIECE = 32_768
"""Keys of OWN that are gathered at once."""
KEYS, QUERIES = 64, 32
"""Pieces of OWN have a multiple of KEYS keys, and chunks a multiple of QUERIES tokens."""


class Piece(NamedTuple):
    """Keys of a row's context."""

    first: int
    length: int


class Chunk(NamedTuple):
    """New tokens of a row, ``padded`` to a length that the attention takes."""

    first: int
    length: int
    padded: int


def pieces_of(start: int) -> list[Piece]:
    """The pieces of a row with ``start`` tokens in the cache, of PIECE_LENS.

    >>> pieces_of(50_000)
    [Piece(first=0, length=32768), Piece(first=32768, length=16384)]
    """
    found, first = list[Piece](), 0
    for length in PIECE_LENS:
        while start - first >= length:
            found.append(Piece(first, length))
            first += length
    return found


def chunks_of(num_new: int) -> list[Chunk]:
    """The chunks of a row's new tokens, of CHUNK_LENS, without its tail.

    >>> chunks_of(2_900)
    [Chunk(first=0, length=2048, padded=2048), Chunk(first=2048, length=852, padded=1024)]
    >>> chunks_of(2_600)
    [Chunk(first=0, length=2048, padded=2048)]
    """
    found, first = list[Chunk](), 0
    for length in CHUNK_LENS:
        while num_new - first >= length:
            found.append(Chunk(first, length, length))
            first += length
    if num_new - first > LONGEST_TAIL:
        found.append(Chunk(first, num_new - first, CHUNK_LENS[-1]))
    return found


def equal_pieces_of(start: int) -> list[Piece]:
    """All whole tiles of KEYS of a row's context, in pieces of about the same length.

    >>> equal_pieces_of(50_000)
    [Piece(first=0, length=24960), Piece(first=24960, length=25024)]
    """
    num_tiles = start // KEYS
    num_pieces = -(-num_tiles * KEYS // LONGEST_PIECE)
    ends = [KEYS * (num_tiles * i // num_pieces) for i in range(num_pieces + 1)]
    return [Piece(first, end - first) for first, end in pairwise(ends)]


def one_chunk_of(num_new: int) -> list[Chunk]:
    """All new tokens of a row.

    >>> one_chunk_of(2_600)
    [Chunk(first=0, length=2600, padded=2624)]
    """
    return [Chunk(0, num_new, -(-num_new // QUERIES) * QUERIES)]


@dataclass(frozen=True)
class Cut:
    """The cut that an attention without a mask asks for: the ``pieces`` of a row's cached tokens,
    and the ``chunks`` of its new ones.

    A row with fewer tokens than ``least_cached`` or ``least_new``, or fewer pairs of both than
    ``least_pairs``, is computed as fast without pieces. ``deepest``: cached and new tokens of a row
    that has each shape of a piece and a chunk, and a tail if there are any.
    """

    pieces: Callable[[int], list[Piece]]
    chunks: Callable[[int], list[Chunk]]
    least_cached: int
    least_new: int
    least_pairs: int
    deepest: tuple[int, int]

    def is_deep(self, start: int, num_new: int) -> bool:
        """True if a row with ``start`` cached tokens and ``num_new`` new ones is computed faster in
        pieces."""
        return (
            start >= self.least_cached
            and num_new >= self.least_new
            and start * num_new >= self.least_pairs
        )

    def suits(self, starts: Sequence[int], lens: Sequence[int]) -> bool:
        """True if the attention of these rows is to be computed in pieces, as far as speed goes:
        deep rows gain a fifth, and the others then take twice as long."""
        deep = others = 0
        for start, num_new in zip(starts, lens, strict=True):
            pairs = start * num_new + num_new * num_new // 2
            if self.is_deep(start, num_new):
                deep += pairs
            else:
                others += pairs
        return deep > 5 * others


LIBRARY = Cut(
    pieces_of, chunks_of, PIECE_LENS[-1], 1_024, 50_000_000,
    (sum(PIECE_LENS), sum(CHUNK_LENS) + 1),
)  # fmt: skip
"""By h200-prompt-attention.json."""
OWN = Cut(equal_pieces_of, one_chunk_of, 8_192, 1_024, 50_000_000, (49_152, 1_024))
"""By h200-prompt-attention-int8.json."""
