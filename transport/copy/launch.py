"""Launches of the copy kernel, with the buffers and events that each needs, made once and reused.

The code of an idle worker leaves the processor's caches and then runs three to four times slower,
so each call on the host matters. Therefore the table's memory on host and device, the buffer for
results and the events are made once, and the three kernels are launched as one graph, which reads
the number of blocks to copy from memory.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from transport.copy.kernel import BlockBytes, CopyShape, copy_blocks, read_words, stage

_NUM_SPARE = 4
_COUNTS = 3


class CopyLaunch:
    """A reusable launch: fill ``table`` and ``words``, call ``enqueue``, wait for the event
    ``finished``, then call ``outcome``. It has room for ``max_blocks`` and ``max_handoffs``."""

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
        self._first_block = _COUNTS + max_handoffs + 1 - max_handoffs % 2  # aligned to 16 bytes
        num_words = self._first_block + 2 * max_blocks
        self._staged = torch.empty(num_words, dtype=torch.int64, pin_memory=True)
        self._rows = self._staged.numpy()
        self._rows[:_COUNTS] = 0
        self._read = torch.empty(max_handoffs, dtype=torch.int64, pin_memory=True)
        self.began = torch.cuda.Event(enable_timing=True)
        self.finished = torch.cuda.Event(enable_timing=True)
        with torch.cuda.stream(stream):  # torch reuses it on this stream alone
            self._on_device = torch.empty(num_words, dtype=torch.int64, device=stream.device)
        self._sizes, self._shape = sizes, shape
        self._launch = self._enqueue_kernels
        self.captured = False

    def capture(self) -> None:
        """Launch the three kernels, which have run before, as one graph from now on. The graph has
        the addresses of their memory, which this object keeps allocated."""
        self._launch = captured(self._enqueue_kernels, self._stream)
        self.captured = True

    def _enqueue_kernels(self) -> None:
        with torch.cuda.stream(self._stream):
            self._three_kernels()

    def _three_kernels(self) -> None:
        counts = self._on_device[:_COUNTS]
        words = self._on_device[_COUNTS : _COUNTS + self.max_handoffs]
        table = self._on_device[self._first_block :].view(-1, 2)
        stage(self._staged, self._on_device, self._first_block)
        copy_blocks(table, counts, self._sizes, self._shape)
        # The GPU writes to pinned memory; after the event the host sees it.
        read_words(words, counts, self._read)

    def table(self, num_blocks: int) -> np.ndarray:
        """[blocks, 2] int64, the table of kernel.py, for the caller to fill."""
        return self._rows[self._first_block :][: 2 * num_blocks].reshape(-1, 2)

    def words(self, num_handoffs: int) -> np.ndarray:
        """[handoffs] int64, for the caller to fill: the address of each exporter's epoch."""
        return self._rows[_COUNTS : _COUNTS + num_handoffs]

    def enqueue(self, num_pages: int, num_handoffs: int, num_windows: int = 0) -> None:
        """Enqueue the upload of the table, the copy, and behind it the reading of ``words``."""
        self._rows[:_COUNTS] = num_pages, num_handoffs, num_windows
        self.began.record(self._stream)
        self._launch()
        self.finished.record(self._stream)

    def outcome(self, num_handoffs: int) -> tuple[list[int], float]:
        """The words read, and the seconds that the copy took."""
        copy_s = self.began.elapsed_time(self.finished) / 1e3
        return self._read[:num_handoffs].tolist(), copy_s


class CopyLaunches:
    """A pool of launches, which ``make`` makes for a number of blocks and handoffs. A few are made
    and captured at the start; more are made when all are in use or too small, and are kept too.
    Making one allocates pinned memory, for which the driver waits for the current step."""

    def __init__(
        self, max_blocks: int, max_handoffs: int, make: Callable[[int, int], CopyLaunch]
    ) -> None:
        self._usual = max_blocks, max_handoffs
        self._make = make
        self._spare = [make(*self._usual) for _ in range(_NUM_SPARE)]
        first = self._spare[0]
        first.enqueue(0, 0)  # compiles the kernels
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
        """Return a launch whose outcome was read. It is taken next, since its memory is still in
        the processor's caches."""
        if launch.captured:
            self._spare.insert(0, launch)
        else:
            self._spare.append(launch)


def captured(work: Callable[[], None], stream: torch.cuda.Stream) -> Callable[[], None]:
    """``work``, which only enqueues on ``stream``, captured as a graph; calling the result launches
    the graph there.

    NOTE: by cupy, since torch launches a graph on its current stream, and to change that takes the
    host as long as the launch.
    """
    from cupy.cuda import ExternalStream, runtime  # cupy is on GPU machines only

    on_stream = ExternalStream(stream.cuda_stream)
    # What a capture forbids is forbidden to this thread alone.
    on_stream.begin_capture(runtime.streamCaptureModeThreadLocal)
    work()
    graph = on_stream.end_capture()
    launch: Callable[[], None] = partial(graph.launch, on_stream)
    return launch
