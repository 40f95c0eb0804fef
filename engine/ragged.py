"""Where the tokens of several chunks lie when they are computed side by side.

Built once a pass and read by every layer: the index arithmetic of rows with different lengths.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

BLOCK = 16
"""Tokens of the delta rule's blocks. Its work within a block grows with the square, the steps from
block to block shrink; it divides CHUNK_ALIGNMENT, so that chunks have the blocks of the prompt."""


@dataclass(frozen=True)
class Blocks:
    """Chunks cut into blocks of ``size`` tokens, all first blocks before all second ones.

    ``order`` int64 [rows] sorts the chunks by length, longest first, so those that have an i-th
    block, ``active[i]`` of them, lead the others. ``tokens`` int64 [blocks * size] is the token
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
        """A block is ``BLOCK`` tokens, or the longest chunk where that is shorter."""
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
    """Chunks one after the other, each behind the few inputs that came before it.

    Places there, int64: ``tokens`` [tokens]; ``history`` and ``last`` [rows * history], the
    inputs before each chunk and those that the next chunk needs.
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
