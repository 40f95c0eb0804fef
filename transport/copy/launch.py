"""A launch of the copy kernel with all it needs beside the caches, kept from one to the next.

A worker that was idle runs its code three to four times slower than a busy one, since that has
left the processor's caches: every call that is not made counts. So the table's memory at both
ends, the place for what is read back and the events are made once, and the three kernels are
launched as one graph, which reads how much there is to do from memory.
"""

from collections.abc import Callable

import numpy as np
import torch

from transport.copy.kernel import BlockBytes, CopyShape, copy_blocks, read_words, stage

_NUM_SPARE = 4
_COUNTS = 2


class CopyLaunch:
    """One launch at a time: fill ``table`` and ``words``, ``enqueue``, and once ``finished`` has
    come, ``outcome``. Holds as many blocks and handoffs as it was made for."""

    def __init__(
        self,
        max_blocks: int,
        max_handoffs: int,
        sizes: BlockBytes,
        shape: CopyShape,
        stream: torch.cuda.Stream,
    ) -> None:
        self.max_blocks, self.max_handoffs = max_blocks, max_handoffs
        self._stream = stream
        self._first_block = _COUNTS + max_handoffs + max_handoffs % 2  # aligned to 16 bytes
        num_words = self._first_block + 2 * max_blocks
        self._staged = torch.empty(num_words, dtype=torch.int64, pin_memory=True)
        self._rows = self._staged.numpy()
        self._rows[:_COUNTS] = 0
        self._read = torch.empty(max_handoffs, dtype=torch.int64, pin_memory=True)
        self.began = torch.cuda.Event(enable_timing=True)
        self.finished = torch.cuda.Event(enable_timing=True)
        with torch.cuda.stream(stream):  # whose work alone may have it again when it is freed
            self._on_device = torch.empty(num_words, dtype=torch.int64, device=stream.device)
        self._sizes, self._shape = sizes, shape
        self._launch = self._three_kernels
        self.captured = False

    def capture(self) -> None:
        """From now on the three kernels, which have run before, are launched as one graph. It
        knows their memory by address: what they use is held here."""
        self._launch = captured(self._three_kernels, self._stream)
        self.captured = True

    def _three_kernels(self) -> None:
        counts = self._on_device[:_COUNTS]
        words = self._on_device[_COUNTS : _COUNTS + self.max_handoffs]
        table = self._on_device[self._first_block :].view(-1, 2)
        stage(self._staged, self._on_device, self._first_block)
        copy_blocks(table, counts, self._sizes, self._shape)
        # The GPU writes pinned memory by itself; the event makes that visible.
        read_words(words, counts, self._read)

    def table(self, num_blocks: int) -> np.ndarray:
        """[blocks, 2] int64, the table of kernel.py, to be filled."""
        return self._rows[self._first_block :][: 2 * num_blocks].reshape(-1, 2)

    def words(self, num_handoffs: int) -> np.ndarray:
        """[handoffs] int64, to be filled: where each exporter's epoch is."""
        return self._rows[_COUNTS : _COUNTS + num_handoffs]

    def enqueue(self, num_pages: int, num_handoffs: int) -> None:
        """The table's way to the device, the copy, and behind it the reading of ``words``."""
        self._rows[:_COUNTS] = num_pages, num_handoffs
        with torch.cuda.stream(self._stream):
            self.began.record(self._stream)
            self._launch()
            self.finished.record(self._stream)

    def outcome(self, num_handoffs: int) -> tuple[list[int], float]:
        """The words read, and the seconds that the copy took."""
        copy_s = self.began.elapsed_time(self.finished) / 1e3
        return self._read[:num_handoffs].tolist(), copy_s


class CopyLaunches:
    """Launches to take and give back, made by ``make`` for so many blocks and handoffs. A few lie
    ready, captured; more are made when all of these are under way, or too small, and kept behind
    them. Making one asks the driver for pinned memory, which waits for the step under way."""

    def __init__(
        self, max_blocks: int, max_handoffs: int, make: Callable[[int, int], CopyLaunch]
    ) -> None:
        self._usual = max_blocks, max_handoffs
        self._make = make
        self._spare = [make(*self._usual) for _ in range(_NUM_SPARE)]
        first = self._spare[0]
        first.enqueue(0, 0)  # compiles
        first.finished.synchronize()
        for launch in self._spare:
            launch.capture()

    def take(self, num_blocks: int, num_handoffs: int) -> CopyLaunch:
        for launch in self._spare:
            if launch.max_blocks >= num_blocks and launch.max_handoffs >= num_handoffs:
                self._spare.remove(launch)
                return launch
        blocks, handoffs = self._usual
        return self._make(max(blocks, num_blocks), max(handoffs, num_handoffs))

    def give_back(self, launch: CopyLaunch) -> None:
        """The launch is over, and its outcome taken. What was used last is used next: its memory
        is in the processor's caches."""
        if launch.captured:
            self._spare.insert(0, launch)
        else:
            self._spare.append(launch)


def captured(work: Callable[[], None], stream: torch.cuda.Stream) -> Callable[[], None]:
    """``work``, which only enqueues, as a graph to be launched on ``stream``."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        # Other threads may go on with what a capture forbids this one.
        graph.capture_begin(capture_error_mode="thread_local")
        work()
        graph.capture_end()
    return graph.replay
