"""How the attention of prompts behind a deep context is cut into pieces. Pure.

    context of a row   |  piece 0  |  piece 1  | ... |  rest, new tokens  |

The new tokens see all keys of a piece, so that each piece is an attention without a mask, which a
library computes at a higher speed (cudnn_attention.py). The rest is shorter than the smallest
piece. A library makes a plan for each shape, so there are few shapes: pieces have PIECE_LENS keys,
and new tokens come in chunks of CHUNK_LENS. What is left of a row's new tokens is its *tail*: a
long one is padded to a chunk, and a short one is computed without pieces. A row that is not deep is
all tail.
"""

from collections.abc import Sequence
from typing import NamedTuple

PIECE_LENS = 32_768, 16_384, 8_192
CHUNK_LENS = 2_048, 1_024
LONGEST_TAIL = 640
"""A chunk of 1,024 takes as long as so many tokens without pieces."""
LEAST_NEW, LEAST_PAIRS = 1_024, 50_000_000
"""A row with fewer new tokens, or fewer pairs of a new and a cached token, is computed as fast
without pieces (h200-prompt-attention.json)."""


class Piece(NamedTuple):
    """Keys of a row's context."""

    first: int
    length: int


class Chunk(NamedTuple):
    """New tokens of a row; ``padded`` is one of CHUNK_LENS."""

    first: int
    length: int
    padded: int


DEEPEST_PLANNED = sum(PIECE_LENS), sum(CHUNK_LENS) + 1
"""Cached and new tokens of a row that has a piece and a chunk of each length, and a tail."""


def is_deep(start: int, num_new: int) -> bool:
    """True if a row with ``start`` cached tokens and ``num_new`` new ones is computed faster in
    pieces."""
    return start >= PIECE_LENS[-1] and num_new >= LEAST_NEW and start * num_new >= LEAST_PAIRS


def in_pieces(starts: Sequence[int], lens: Sequence[int]) -> bool:
    """True if the attention of these rows is to be computed in pieces, as far as speed goes: deep
    rows gain a fifth, and the others then take twice as long."""
    deep = others = 0
    for start, num_new in zip(starts, lens, strict=True):
        pairs = start * num_new + num_new * num_new // 2
        if is_deep(start, num_new):
            deep += pairs
        else:
            others += pairs
    return deep > 5 * others


def pieces_of(start: int) -> list[Piece]:
    """The pieces of a row with ``start`` tokens in the cache.

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
    """The chunks of a row's new tokens, without its tail.

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
