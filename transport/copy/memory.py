"""A worker's own exported memory, and the copy stream that reads its peers'.

One interface for POSIX shared memory (CPU) and CUDA IPC (GPU): memory is allocated once, exported
once, and never freed while the process lives. An exporter may write while a peer reads: the copy is
correct only if the epoch of the state slot still equals the offer's after the copy.
"""

from typing import Protocol

import torch

from transport.copy import shm
from transport.copy.host_copy import HostCopier, ThreadHostCopier
from transport.copy.pull import CopyStream, CopyThread
from transport.copy.tensors import CacheTensors
from transport.wire.memory_export import MemoryKind


class OwnMemory(Protocol):
    """This worker's region: ``allocate`` may be called once, before anything is exported."""

    @property
    def kind(self) -> MemoryKind: ...

    @property
    def handle(self) -> str:
        """What a peer needs to open the region."""
        ...

    @property
    def size_bytes(self) -> int: ...

    def allocate(self, size_bytes: int) -> torch.Tensor:
        """The region as uint8 [size_bytes]; contents undefined."""
        ...

    def lost(self) -> str:
        """Why peers cannot open the region any more; "" as long as they can, as far as is known."""
        ...

    def await_unmapped(self) -> None:
        """Give peers, who have been told that this worker leaves, the time to unmap the region."""
        ...

    def close(self) -> None:
        """Withdraw the export; tensors over the region stay valid in this process."""
        ...


class SharedMemory:
    """OwnMemory on the CPU."""

    kind: MemoryKind = "shm"

    def __init__(self, instance: str) -> None:
        self._instance = instance
        self._segment: shm.Segment | None = None

    @property
    def handle(self) -> str:
        assert self._segment is not None, "exported before allocated"
        return self._segment.handle

    @property
    def size_bytes(self) -> int:
        assert self._segment is not None, "exported before allocated"
        return self._segment.size_bytes

    def allocate(self, size_bytes: int) -> torch.Tensor:
        assert self._segment is None, "allocated twice"
        # Where there is no supervisor, nothing else removes the segment of a killed worker.
        shm.sweep()
        self._segment = shm.Segment(self._instance, size_bytes)
        return torch.frombuffer(self._segment.memory, dtype=torch.uint8)

    def lost(self) -> str:
        return "" if self._segment is None else self._segment.lost()

    def await_unmapped(self) -> None:
        """No effect: a mapping outlives its owner at no cost."""

    def close(self) -> None:
        if self._segment is not None:
            self._segment.close()
            self._segment = None


def own_memory(device: str, instance: str) -> OwnMemory:
    """Exportable memory of a worker on ``device`` (cpu or cuda)."""
    if device == "cpu":
        return SharedMemory(instance)
    from transport.copy.cuda import CudaMemory  # needs cupy, which only GPU machines have

    return CudaMemory()


def copy_stream(
    device: str, own: CacheTensors, *, poisoned: bool, after: "torch.cuda.Stream | None" = None
) -> CopyStream:
    """The copy stream of a worker on ``device``. ``poisoned``: freed memory is overwritten. A pull
    writes nothing until the work enqueued on ``after`` is done."""
    if device == "cpu":
        return CopyThread(own)
    from transport.copy.cuda_pull import CudaCopyStream

    return CudaCopyStream(own, after_steps=poisoned, after=after)


def host_copier(
    device: str,
    own: CacheTensors,
    size_bytes: int,
    *,
    poisoned: bool,
    after: "torch.cuda.Stream | None" = None,
) -> HostCopier:
    """Host memory for prefixes of a worker on ``device``, to be made when all graphs are captured.
    Raises ValueError if it is too small for any. ``poisoned``, ``after``: as for pulls."""
    page_bytes, state_bytes = own.kv[0].nbytes, sum(states[0].nbytes for states in own.states)
    # A page, and a state in which one block of each part is not full.
    least = (3 + (own.windows.numel() > 0)) * page_bytes + state_bytes
    if size_bytes < least:
        raise ValueError(f"host_cache: {size_bytes} bytes, but a prefix can take {least}")
    if device == "cpu":
        return ThreadHostCopier(own, size_bytes)
    from transport.copy.cuda_host import CudaHostCopier

    return CudaHostCopier(own, size_bytes, after_steps=poisoned, after=after)
