"""Copies between a worker's cache and its host memory for prefixes.

The host memory is divided into blocks of a page's size. A page is in one block; a state is in
several, which need not be adjacent. So pages and states share one pool in any proportion. The
blocks come in pieces: a large amount of pinned memory takes minutes to get, and a worker uses the
pieces that it already has.
"""

import ctypes
import mmap
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Protocol

from transport.copy.pull import CLOSE_S, Copied, Pull, ThreadPull
from transport.copy.tensors import CacheTensors


@dataclass(frozen=True)
class HostCopy:
    """One copy: pages of the cache, each with its block of host memory, and state slots, each with
    its blocks."""

    pages: Sequence[tuple[int, int]]
    states: Sequence[tuple[int, Sequence[int]]]


class HostCopier(Protocol):
    """Host memory in blocks, and copies between it and the cache, beside the steps. The caller
    keeps the memory that a copy writes reserved until it is done."""

    @property
    def block_bytes(self) -> int: ...

    @property
    def blocks_per_state(self) -> int: ...

    @property
    def num_blocks(self) -> int:
        """Number of blocks available so far; it never falls."""
        ...

    def save(self, copy: HostCopy) -> Pull:
        """Copy pages and states, which no step under way writes, to the host."""
        ...

    def fetch(self, copy: HostCopy) -> Pull:
        """Copy from the host to pages and state slots that nothing else uses."""
        ...

    def close(self, timeout_s: float = CLOSE_S) -> bool:
        """Wait at most ``timeout_s`` for copies under way; True if all have ended."""
        ...


@dataclass(frozen=True)
class Run:
    """Adjacent bytes of the cache that go to, or come from, adjacent bytes of the host."""

    cache: int
    host: int
    num_bytes: int

    def ends_at(self, cache: int, host: int) -> bool:
        return (self.cache + self.num_bytes, self.host + self.num_bytes) == (cache, host)


class BlockMap:
    """The addresses of pages, states and blocks in this process. ``pieces`` are the addresses of
    the host memory's pieces, with ``blocks_per_piece`` blocks each; the caller adds to them, and
    keeps them allocated."""

    def __init__(self, cache: CacheTensors, blocks_per_piece: int) -> None:
        self._cache = cache  # keeps its memory allocated
        self._blocks_per_piece = blocks_per_piece
        self.block_bytes = cache.kv[0].nbytes
        self.pieces: list[int] = []

    @property
    def num_blocks(self) -> int:
        return len(self.pieces) * self._blocks_per_piece

    @property
    def blocks_per_state(self) -> int:
        return sum(1 for _ in self._state(0))

    def runs(self, copy: HostCopy) -> list[Run]:
        runs: list[Run] = []
        for cache, block, num_bytes in self._parts(copy):
            piece, index = divmod(block, self._blocks_per_piece)
            host = self.pieces[piece] + index * self.block_bytes
            last = runs[-1] if runs else Run(0, 0, 0)
            # Pieces may happen to be adjacent, but the driver takes each for memory of its own.
            if index and last.ends_at(cache, host):
                runs[-1] = Run(last.cache, last.host, last.num_bytes + num_bytes)
            else:
                runs.append(Run(cache, host, num_bytes))
        return runs

    def _parts(self, copy: HostCopy) -> Iterator[tuple[int, int, int]]:
        """Address, block and number of bytes of everything to copy, one block at a time."""
        kv = self._cache.kv.data_ptr()
        for page, block in copy.pages:
            yield kv + page * self.block_bytes, block, self.block_bytes
        for slot, blocks in copy.states:
            for (address, num_bytes), block in zip(self._state(slot), blocks, strict=True):
                yield address, block, num_bytes

    def _state(self, slot: int) -> Iterator[tuple[int, int]]:
        """Address and number of bytes of a state's parts, each at most a block."""
        for states in (self._cache.recurrent, self._cache.conv, self._cache.windows):
            size = states[0].nbytes
            start = states.data_ptr() + slot * size
            for offset in range(0, size, self.block_bytes):
                yield start + offset, min(self.block_bytes, size - offset)


class NoHostMemory:
    """The HostCopier of a worker that has no host memory for prefixes."""

    block_bytes = blocks_per_state = num_blocks = 0

    def save(self, copy: HostCopy) -> Pull:
        raise AssertionError("saved without memory")

    def fetch(self, copy: HostCopy) -> Pull:
        raise AssertionError("fetched without memory")

    def close(self, timeout_s: float = CLOSE_S) -> bool:
        return True


class ThreadHostCopier:
    """The HostCopier of a CPU worker: ordinary memory of ``size_bytes``, and a thread for each
    direction, so that a fetch does not wait for saves."""

    def __init__(self, cache: CacheTensors, size_bytes: int) -> None:
        num_blocks = size_bytes // cache.kv[0].nbytes
        self._map = BlockMap(cache, num_blocks)
        self.block_bytes = self._map.block_bytes
        self.blocks_per_state = self._map.blocks_per_state
        if num_blocks:
            self._memory = mmap.mmap(-1, num_blocks * self.block_bytes)
            self._map.pieces.append(ctypes.addressof(ctypes.c_char.from_buffer(self._memory)))
        self._saving = ThreadPoolExecutor(max_workers=1, thread_name_prefix="host-save")
        self._fetching = ThreadPoolExecutor(max_workers=1, thread_name_prefix="host-fetch")
        self._under_way: list[Future[Copied]] = []

    @property
    def num_blocks(self) -> int:
        return self._map.num_blocks

    def save(self, copy: HostCopy) -> Pull:
        moves = [(run.host, run.cache, run.num_bytes) for run in self._map.runs(copy)]
        return self._start(self._saving, moves)

    def fetch(self, copy: HostCopy) -> Pull:
        moves = [(run.cache, run.host, run.num_bytes) for run in self._map.runs(copy)]
        return self._start(self._fetching, moves)

    def close(self, timeout_s: float = CLOSE_S) -> bool:
        for thread in (self._saving, self._fetching):
            thread.shutdown(wait=False, cancel_futures=True)
        begun = [future for future in self._under_way if not future.cancelled()]
        return not wait(begun, timeout_s).not_done

    def _start(self, thread: ThreadPoolExecutor, moves: list[tuple[int, int, int]]) -> Pull:
        self._under_way = [future for future in self._under_way if not future.done()]
        future = thread.submit(_move, moves)
        self._under_way.append(future)
        return ThreadPull(future)


def _move(moves: list[tuple[int, int, int]]) -> Copied:
    began = time.perf_counter()
    for target, source, num_bytes in moves:
        ctypes.memmove(target, source, num_bytes)
    return Copied(sum(num_bytes for _, _, num_bytes in moves), time.perf_counter() - began)
