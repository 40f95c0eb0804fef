"""From the device to the host without waiting for what the device is doing."""

from collections import deque
from dataclasses import dataclass

import torch


def download(*tensors: torch.Tensor) -> tuple[list[torch.Tensor], torch.cuda.Event]:
    """Copies of CUDA ``tensors`` in pinned memory, enqueued on the current stream, and the event
    behind them: what the copies hold may be read once it has passed. With no tensors the event
    stands behind what is enqueued."""
    copies = [
        torch.empty(each.shape, dtype=each.dtype, pin_memory=True).copy_(each, non_blocking=True)
        for each in tensors
    ]
    copied = torch.cuda.Event()
    copied.record()
    return copies, copied


@dataclass(frozen=True)
class Written:
    """Pinned memory ``values``, which a kernel has written when ``event`` has happened."""

    values: torch.Tensor
    event: torch.cuda.Event


class WrittenByKernels:
    """Keeps pinned memory until the kernels that write it have run: torch does not know of them,
    and gives out memory again when it is dropped."""

    def __init__(self) -> None:
        self._under_way: deque[Written] = deque()

    def empty(self, num_values: int) -> torch.Tensor:
        """int64, for the next kernel."""
        return torch.empty(num_values, dtype=torch.int64, pin_memory=True)

    def keep(self, values: torch.Tensor, event: torch.cuda.Event | None = None) -> Written:
        """Of the kernel enqueued last; ``event`` stands behind it, and is recorded if not given."""
        if event is None:
            event = torch.cuda.Event()
            event.record()
        written = Written(values, event)
        self._under_way.append(written)
        while self._under_way and self._under_way[0].event.query():
            self._under_way.popleft()
        return written
