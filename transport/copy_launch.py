"""What a launch of the copy kernel needs beside the caches, kept from one launch to the next.

A worker that was idle enqueues three to four times slower than a busy one, since its code has
left the processor's caches: every call that is not made counts. So the table's memory at both
ends, the place for what is read back and the events are made once.
"""

import numpy as np
import torch

from transport.copy_kernel import BlockBytes, CopyShape, copy_blocks, read_words

_NUM_SPARE = 4


class CopyLaunch:
    """One launch at a time: fill ``table`` and ``words``, ``enqueue``, and once ``finished`` has
    come, ``outcome``. Holds as many blocks and handoffs as it was made for."""

    def __init__(self, max_blocks: int, max_handoffs: int, device: torch.device) -> None:
        self.max_blocks, self.max_handoffs = max_blocks, max_handoffs
        num_words = 2 * max_blocks + max_handoffs
        self._staged = torch.empty(num_words, dtype=torch.int64, pin_memory=True)
        self._rows = self._staged.numpy()
        self._on_device = torch.empty(num_words, dtype=torch.int64, device=device)
        self._read = torch.empty(max_handoffs, dtype=torch.int64, pin_memory=True)
        self.began = torch.cuda.Event(enable_timing=True)
        self.finished = torch.cuda.Event(enable_timing=True)

    def table(self, num_blocks: int) -> np.ndarray:
        """[blocks, 2] int64, the table of copy_kernel.py, to be filled."""
        return self._rows[: 2 * num_blocks].reshape(-1, 2)

    def words(self, num_blocks: int, num_handoffs: int) -> np.ndarray:
        """[handoffs] int64, to be filled: where each exporter's generation is."""
        return self._rows[2 * num_blocks : 2 * num_blocks + num_handoffs]

    def enqueue(
        self,
        num_pages: int,
        num_handoffs: int,
        sizes: BlockBytes,
        shape: CopyShape,
        stream: torch.cuda.Stream,
    ) -> None:
        """The table's way to the device, the copy, and behind it the reading of ``words``, all
        on ``stream``, which is the current one."""
        end = 2 * (num_pages + 2 * num_handoffs)
        on_device = self._on_device[: end + num_handoffs]
        on_device.copy_(self._staged[: end + num_handoffs], non_blocking=True)
        self.began.record(stream)
        copy_blocks(on_device[:end].view(-1, 2), num_pages, num_handoffs, sizes, shape)
        # The GPU writes pinned memory by itself; the event makes that visible.
        read_words(on_device[end:], self._read[:num_handoffs])
        self.finished.record(stream)

    def outcome(self, num_handoffs: int) -> tuple[list[int], float]:
        """The words read, and the seconds that the copy took."""
        copy_s = self.began.elapsed_time(self.finished) / 1e3
        return self._read[:num_handoffs].tolist(), copy_s


class CopyLaunches:
    """Launches to take and give back. A few lie ready: making one asks the driver for pinned
    memory, which waits for the step under way."""

    def __init__(self, max_blocks: int, max_handoffs: int, device: torch.device) -> None:
        self._usual = max_blocks, max_handoffs
        self._device = device
        self._spare = [CopyLaunch(*self._usual, device) for _ in range(_NUM_SPARE)]

    def take(self, num_blocks: int, num_handoffs: int) -> CopyLaunch:
        for launch in self._spare:
            if launch.max_blocks >= num_blocks and launch.max_handoffs >= num_handoffs:
                self._spare.remove(launch)
                return launch
        blocks, handoffs = self._usual
        return CopyLaunch(max(blocks, num_blocks), max(handoffs, num_handoffs), self._device)

    def give_back(self, launch: CopyLaunch) -> None:
        """The launch is over, and its outcome taken."""
        self._spare.append(launch)
