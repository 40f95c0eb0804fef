"""The host tier's memory and copies on a CUDA worker.

Pinned memory takes seconds per 10 GB: the kernel has to find and zero it, and the driver to map it.
So a thread gets it in pieces while the worker serves (host_copy.py).

Order between copies and steps: a prefix is saved after the host has seen the end of its step,
and a fetch writes only free memory, which no step under way uses (cuda_pull.py). Fetches wait for
the epochs' stream as pulls do, and for the steps where freed memory is poisoned (tests).
"""

import ctypes
import logging
import mmap
import threading
import time
from contextlib import suppress
from dataclasses import dataclass

import torch
from cupy.cuda import runtime

from transport.copy.free_memory import available_bytes
from transport.copy.host_copy import BlockMap, HostCopy
from transport.copy.pull import CLOSE_S, Copied, Pull, poll_until_done
from transport.copy.tensors import CacheTensors

PIECE_BYTES = 256 << 20
"""Size of a piece of pinned memory; small, since the driver blocks other threads while it maps
it."""
LEFT_BYTES = 4 << 30
"""Memory left to the rest of the host: below it no more is pinned."""

log = logging.getLogger(__name__)


class PinnedPieces:
    """A thread that gets pinned memory in pieces, and adds their addresses to ``addresses``.

    NOTE: it starts when all graphs have been captured: a capture can forbid other threads to call
    the driver.
    """

    def __init__(self, num: int, piece_bytes: int, device: int, addresses: list[int]) -> None:
        self._num, self._piece_bytes, self._device = num, piece_bytes, device
        self._addresses = addresses
        self._memory: list[mmap.mmap] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._get_all, name="host-pinning", daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float) -> bool:
        """Wait until the thread has all its memory, at most ``timeout_s``; True if it has."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def close(self, timeout_s: float) -> bool:
        """Unpin all memory. No copy may be under way."""
        self._stop.set()
        if not self.wait(timeout_s):
            return False
        for address in self._addresses:
            runtime.hostUnregister(address)
        self._addresses.clear()
        return True

    def _get_all(self) -> None:
        began = time.monotonic()
        try:
            runtime.setDevice(self._device)
            for _ in range(self._num):
                if self._stop.is_set():
                    return
                self._get_one()
        except (MemoryError, OSError, RuntimeError) as error:
            log.error(
                "host_cache: only %.1f of %.1f GB of host memory could be pinned: %s",
                len(self._addresses) * self._piece_bytes / 1e9, self._num * self._piece_bytes / 1e9,
                error,
            )  # fmt: skip
            return
        gigabytes = self._num * self._piece_bytes / 1e9
        log.info("pinned %.1f GB for prefixes in %.0f s", gigabytes, time.monotonic() - began)

    def _get_one(self) -> None:
        available = available_bytes()
        if available < LEFT_BYTES + self._piece_bytes:
            raise MemoryError(f"{available / 1e9:.1f} GB are available on this host")
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        memory = mmap.mmap(-1, self._piece_bytes, flags=flags)
        with suppress(OSError):  # a kernel without huge pages: it only takes longer
            memory.madvise(mmap.MADV_HUGEPAGE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        ctypes.memset(address, 0, self._piece_bytes)  # the kernel's part, outside the driver's lock
        runtime.hostRegister(address, self._piece_bytes, 0)
        self._memory.append(memory)
        self._addresses.append(address)


@dataclass(eq=False)
class CudaHostPull:
    """A copy on one of the host tier's streams."""

    num_bytes: int
    began: torch.cuda.Event
    finished: torch.cuda.Event

    def done(self) -> bool:
        return bool(self.finished.query())

    def wait(self, timeout_s: float) -> bool:
        return poll_until_done(self, timeout_s)

    def result(self) -> Copied:
        return Copied(self.num_bytes, self.began.elapsed_time(self.finished) / 1e3)


class CudaHostCopier:
    """The HostCopier of a CUDA worker, with a stream for each direction, as the GPU has an engine
    for each. Fetches wait for the work queued on ``after`` when they start, and with
    ``after_steps`` also for the work queued on the current stream."""

    def __init__(
        self,
        cache: CacheTensors,
        size_bytes: int,
        *,
        after_steps: bool,
        after: torch.cuda.Stream | None = None,
    ) -> None:
        block_bytes = cache.kv[0].nbytes
        num_blocks = size_bytes // block_bytes
        blocks_per_piece = max(1, min(num_blocks, PIECE_BYTES // block_bytes))
        self._map = BlockMap(cache, blocks_per_piece)
        self.block_bytes = block_bytes
        self.blocks_per_state = self._map.blocks_per_state
        device = cache.kv.device
        self._saving, self._fetching = torch.cuda.Stream(device), torch.cuda.Stream(device)
        self._after_steps = after_steps
        self._after = after
        self._under_way: list[CudaHostPull] = []
        self.pieces = PinnedPieces(
            num_blocks // blocks_per_piece,
            blocks_per_piece * block_bytes,
            device.index or 0,
            self._map.pieces,
        )

    @property
    def num_blocks(self) -> int:
        return self._map.num_blocks

    def save(self, copy: HostCopy) -> Pull:
        moves = [(run.host, run.cache, run.num_bytes) for run in self._map.runs(copy)]
        return self._start(self._saving, moves, runtime.memcpyDeviceToHost)

    def fetch(self, copy: HostCopy) -> Pull:
        if self._after is not None:
            self._fetching.wait_stream(self._after)
        if self._after_steps:
            self._fetching.wait_stream(torch.cuda.current_stream(self._fetching.device))
        moves = [(run.cache, run.host, run.num_bytes) for run in self._map.runs(copy)]
        return self._start(self._fetching, moves, runtime.memcpyHostToDevice)

    def close(self, timeout_s: float = CLOSE_S) -> bool:
        deadline = time.monotonic() + timeout_s
        if not all(pull.wait(deadline - time.monotonic()) for pull in self._under_way):
            return False
        return self.pieces.close(deadline - time.monotonic())

    def _start(
        self, stream: torch.cuda.Stream, moves: list[tuple[int, int, int]], kind: int
    ) -> CudaHostPull:
        self._under_way = [pull for pull in self._under_way if not pull.done()]
        num_bytes = sum(num_bytes for _, _, num_bytes in moves)
        began = torch.cuda.Event(enable_timing=True)
        finished = torch.cuda.Event(enable_timing=True)
        began.record(stream)
        for target, source, size in moves:
            runtime.memcpyAsync(target, source, size, kind, stream.cuda_stream)
        finished.record(stream)
        pull = CudaHostPull(num_bytes, began, finished)
        self._under_way.append(pull)
        return pull
