"""Copies from the device to the host without waiting for work under way on the device."""

from collections import deque
from dataclasses import dataclass

import torch


def download(*tensors: torch.Tensor) -> tuple[list[torch.Tensor], torch.cuda.Event]:
    """Enqueue copies of CUDA ``tensors`` to pinned memory on the current stream. Returns the
    copies, and an event after which they may be read; without tensors, an event behind the enqueued
    work."""
    copies = [
        torch.empty(each.shape, dtype=each.dtype, pin_memory=True).copy_(each, non_blocking=True)
        for each in tensors
    ]
    copied = torch.cuda.Event()
    copied.record()
    return copies, copied


@dataclass(frozen=True)
class Written:
    """Pinned memory ``values``, which a kernel has written once ``event`` has passed."""

    values: torch.Tensor
    event: torch.cuda.Event


class WrittenByKernels:
    """Keeps pinned memory until the kernels that write it have run. torch does not know of these
    writes, and would reuse memory that is dropped earlier."""

    def __init__(self) -> None:
        self._under_way: deque[Written] = deque()

    def empty(self, num_values: int) -> torch.Tensor:
        """Memory for the next kernel to write, int64 [num_values]."""
        return torch.empty(num_values, dtype=torch.int64, pin_memory=True)

    def keep(self, values: torch.Tensor, event: torch.cuda.Event | None = None) -> Written:
        """Keep the memory that the kernel enqueued last writes; ``event`` is behind that kernel,
        and is recorded now if not given."""
        if event is None:
            event = torch.cuda.Event()
            event.record()
        written = Written(values, event)
        self._under_way.append(written)
        while self._under_way and self._under_way[0].event.query():
            self._under_way.popleft()
        return written
