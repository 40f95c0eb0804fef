"""Index arithmetic of rows with different lengths: where the tokens of several chunks are.

It is built once per pass and read by every layer.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

BLOCK = 16
"""Tokens of the delta rule's blocks. With larger blocks the work within a block grows with the
square, and there are fewer steps from block to block. It divides CHUNK_ALIGNMENT, so that chunks
have the blocks of the whole prompt."""


@dataclass(frozen=True)
class Blocks:
    """Chunks cut into blocks of ``size`` tokens, all first blocks before all second ones.

    ``order`` int64 [rows] sorts the chunks by length, longest first, so the ``active[i]`` chunks
    that have an i-th block come first. ``tokens`` int64 [blocks * size] is the token
    at each place; past a chunk's end its last token repeats, and ``padding`` (bool
    [blocks, size], None without any) is True. ``places`` int64 [tokens] is the inverse.
    """

    size: int
    order: torch.Tensor
    active: tuple[int, ...]
    tokens: torch.Tensor
    padding: torch.Tensor | None
    places: torch.Tensor

    @classmethod
    def of(cls, lens: Sequence[int], device: torch.device) -> "Blocks":
        """The blocks of chunks of these lengths: ``BLOCK`` tokens, or the longest chunk if that is
        shorter."""
        size = min(BLOCK, max(lens))
        order = sorted(range(len(lens)), key=lambda row: -lens[row])
        firsts = [sum(lens[:row]) for row in range(len(lens))]
        active, tokens, padded = [], list[int](), list[bool]()
        places = [0] * sum(lens)
        for begin in range(0, max(lens), size):
            rows = [row for row in order if lens[row] > begin]
            active.append(len(rows))
            for row in rows:
                num = min(size, lens[row] - begin)
                first = firsts[row] + begin
                places[first : first + num] = range(len(tokens), len(tokens) + num)
                tokens += [*range(first, first + num), *[first + num - 1] * (size - num)]
                padded += [False] * num + [True] * (size - num)
        padding = torch.tensor(padded, device=device).view(-1, size) if any(padded) else None
        return cls(
            size,
            torch.tensor(order, device=device),
            tuple(active),
            torch.tensor(tokens, device=device),
            padding,
            torch.tensor(places, device=device),
        )


@dataclass(frozen=True)
class BehindHistory:
    """Chunks one after another, each preceded by the few inputs before it.

    Indices, int64: ``tokens`` [tokens]; ``history`` [rows * history], the inputs before each chunk;
    ``last`` [rows * history], the inputs that the next chunk needs.
    """

    num_history: int
    tokens: torch.Tensor
    history: torch.Tensor
    last: torch.Tensor

    @classmethod
    def of(cls, lens: Sequence[int], num_history: int, device: torch.device) -> "BehindHistory":
        tokens, history, last = list[int](), list[int](), list[int]()
        begin = 0
        for length in lens:
            first, end = begin + num_history, begin + num_history + length
            history += range(begin, first)
            tokens += range(first, end)
            last += range(end - num_history, end)
            begin = end
        places = (
            torch.tensor(x, dtype=torch.int64, device=device) for x in (tokens, history, last)
        )
        return cls(num_history, *places)
