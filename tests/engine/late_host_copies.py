"""A HostCopier whose copies make no progress but by the test, run by run, so that they end late."""

import ctypes
from dataclasses import dataclass, field

import torch

from transport.copy.host_copy import BlockMap, HostCopy
from transport.copy.pull import CLOSE_S, Copied
from transport.copy.tensors import CacheTensors


@dataclass(eq=False)
class LateCopy:
    moves: list[tuple[int, int, int]]
    num_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.num_bytes = sum(num_bytes for _, _, num_bytes in self.moves)

    def step(self) -> None:
        if self.moves:
            ctypes.memmove(*self.moves.pop())

    def done(self) -> bool:
        return not self.moves

    def wait(self, timeout_s: float) -> bool:
        return self.done()

    def result(self) -> Copied:
        assert self.done()
        return Copied(self.num_bytes, 0.0)


class LateHostCopier:
    def __init__(self, cache: CacheTensors, num_pieces: int, blocks_per_piece: int) -> None:
        self._map = BlockMap(cache, blocks_per_piece)
        self.block_bytes = self._map.block_bytes
        self.blocks_per_state = self._map.blocks_per_state
        self._memory: list[torch.Tensor] = []
        self._piece_bytes = blocks_per_piece * self.block_bytes
        self.copies: list[LateCopy] = []
        for _ in range(num_pieces):
            self.grow()

    @property
    def num_blocks(self) -> int:
        return self._map.num_blocks

    @property
    def under_way(self) -> list[LateCopy]:
        return [copy for copy in self.copies if not copy.done()]

    def grow(self) -> None:
        self._memory.append(torch.zeros(self._piece_bytes, dtype=torch.uint8))
        self._map.pieces.append(self._memory[-1].data_ptr())

    def save(self, copy: HostCopy) -> LateCopy:
        return self._start([(r.host, r.cache, r.num_bytes) for r in self._map.runs(copy)])

    def fetch(self, copy: HostCopy) -> LateCopy:
        return self._start([(r.cache, r.host, r.num_bytes) for r in self._map.runs(copy)])

    def close(self, timeout_s: float = CLOSE_S) -> bool:
        return all(copy.done() for copy in self.copies)

    def end_all(self) -> None:
        for copy in self.copies:
            while not copy.done():
                copy.step()

    def _start(self, moves: list[tuple[int, int, int]]) -> LateCopy:
        self.copies = self.under_way
        self.copies.append(LateCopy(moves))
        return self.copies[-1]
