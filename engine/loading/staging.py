"""Copies checkpoint bytes to a GPU at the speed of the page cache.

A mapped file is read page by page through faults, by one thread, from memory that the copy engine
cannot use. Here a few threads read pieces of tensors into pinned buffers and copy them to the GPU,
some reading while others copy. A tensor whose place has the same dtype and order is copied straight
there; any other is first copied to temporary memory, and cast, transposed or made FP8 on the GPU.
"""

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import local

import torch

from engine.errors import CheckpointError
from engine.loading.checkpoint import DTYPES, Entry
from engine.loading.plan import Target

PIECE_BYTES = 32 << 20
NUM_THREADS = 8
MAX_UNDER_WAY_BYTES = 1 << 30
"""The most bytes submitted before the oldest tensor is waited for."""
MAX_KEPT_BYTES = 256 << 20
"""The most bytes of tensors in temporary memory before the copies to their places are waited for.
An FP8 checkpoint stores the scales of its experts in 30,000 tensors of a hundred bytes: a wait for
each would take longer than the copies."""


@dataclass(frozen=True)
class _Arrival:
    """A tensor being copied: ``landed`` holds its bytes on the GPU once all ``pieces`` are done."""

    entry: Entry
    target: Target
    landed: torch.Tensor
    pieces: "tuple[Future[int], ...]"


def copy_to_gpu(
    matched: Sequence[tuple[Entry, Target]], device: torch.device, done: Callable[[int], None]
) -> None:
    """Fill every target from its entry; call ``done`` with the number of bytes of each tensor that
    is in place.

    Raises CheckpointError for a file that cannot be read or ends early.
    """
    lanes = local()
    sources = _CopySources(device)

    def move(
        descriptor: int, offset: int, destination: torch.Tensor, after: torch.cuda.Event | None
    ) -> int:
        if not hasattr(lanes, "own"):
            lanes.own = _Lane(device)
        lane: _Lane = lanes.own
        return lane.move(descriptor, offset, destination, after)

    def finish(arrival: _Arrival) -> None:
        try:
            for piece in arrival.pieces:
                piece.result()
        except (OSError, EOFError) as error:
            entry = arrival.entry
            raise CheckpointError(f"cannot read {entry.name} in {entry.file}: {error}") from error
        target, landed = arrival.target, arrival.landed
        if target.direct(DTYPES[arrival.entry.dtype]) is None:
            target.copy(landed.view(DTYPES[arrival.entry.dtype]).view(arrival.entry.shape))
            sources.keep(landed)
        done(arrival.entry.num_bytes)

    under_way: deque[_Arrival] = deque()
    num_bytes = 0
    with _opened({entry.file for entry, _ in matched}) as files, _threads(device) as threads:
        for entry, target in matched:
            landed, after = _landing(entry, target, device)
            pieces = tuple(
                threads.submit(move, files[entry.file], entry.offset + start, part, after)
                for start, part in _parts(landed)
            )
            under_way.append(_Arrival(entry, target, landed, pieces))
            num_bytes += entry.num_bytes
            while num_bytes > MAX_UNDER_WAY_BYTES:
                num_bytes -= under_way[0].entry.num_bytes
                finish(under_way.popleft())
        while under_way:
            finish(under_way.popleft())
        sources.release()


class _CopySources:
    """Tensors that the current stream still copies from. Memory that is freed earlier may be
    reused, and overwritten, by a thread's stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._kept: list[torch.Tensor] = []
        self._num_bytes = 0

    def keep(self, tensor: torch.Tensor) -> None:
        self._kept.append(tensor)
        self._num_bytes += tensor.nbytes
        if self._num_bytes > MAX_KEPT_BYTES:
            self.release()

    def release(self) -> None:
        """Wait until all copies are done."""
        if self._kept:
            torch.cuda.current_stream(self._device).synchronize()
        self._kept.clear()
        self._num_bytes = 0


class _Lane:
    """One thread's pinned buffer and stream."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self._buffer = torch.empty(PIECE_BYTES, dtype=torch.uint8, pin_memory=True)

    def move(
        self,
        descriptor: int,
        offset: int,
        destination: torch.Tensor,
        after: torch.cuda.Event | None,
    ) -> int:
        """Read bytes of a file to ``destination`` (uint8, on the GPU), which may be written once
        ``after`` has come, and wait for the copy."""
        num_bytes, filled = destination.numel(), 0
        view = memoryview(self._buffer.numpy())[:num_bytes]  # type: ignore[arg-type]
        while filled < num_bytes:
            got = os.preadv(descriptor, [view[filled:]], offset + filled)
            if got == 0:
                raise EOFError(f"the file ends {num_bytes - filled} bytes early")
            filled += got
        if after is not None:
            self._stream.wait_event(after)
        with torch.cuda.stream(self._stream):
            destination.copy_(self._buffer[:num_bytes], non_blocking=True)
        self._stream.synchronize()
        return num_bytes


def _landing(
    entry: Entry, target: Target, device: torch.device
) -> tuple[torch.Tensor, torch.cuda.Event | None]:
    """Where a tensor's bytes are copied to, and what a thread's stream waits for before it: the
    current stream may still read temporary memory that a tensor before left."""
    into = target.direct(DTYPES[entry.dtype])
    if into is not None:
        return into.view(-1).view(torch.uint8), None
    landed = torch.empty(entry.num_bytes, dtype=torch.uint8, device=device)
    return landed, torch.cuda.current_stream(device).record_event()


def _parts(landed: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    for start in range(0, landed.numel(), PIECE_BYTES):
        yield start, landed[start : start + PIECE_BYTES]


@contextmanager
def _opened(files: set[Path]) -> Iterator[dict[Path, int]]:
    with ExitStack() as stack:
        descriptors = {}
        for file in files:
            descriptors[file] = os.open(file, os.O_RDONLY)
            stack.callback(os.close, descriptors[file])
        yield descriptors


@contextmanager
def _threads(device: torch.device) -> Iterator[ThreadPoolExecutor]:
    # A new thread's current GPU is 0, where it would open a context of hundreds of megabytes.
    threads = ThreadPoolExecutor(NUM_THREADS, "loader", torch.cuda.set_device, (device,))
    try:
        yield threads
    finally:
        # Pieces that have not begun are dropped, so that an error does not wait for the rest of the
        # model.
        threads.shutdown(cancel_futures=True)
