"""A worker's own exported memory, and a peer's as this process sees it.

One interface for POSIX shared memory (CPU) and CUDA IPC (GPU): allocate once, export once,
never free while the process lives. What a peer wrote may change under a reader at any time;
only an offer whose generation still holds after the copy says that the bytes were right.
"""

from typing import Protocol, assert_never

import torch

from transport import shm
from transport.messages import MemoryExport, MemoryKind
from transport.pull import CopyStream, CopyThread
from transport.tensors import CacheTensors


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
        self._segment = shm.Segment(self._instance, size_bytes)
        return torch.frombuffer(self._segment.memory, dtype=torch.uint8)

    def close(self) -> None:
        if self._segment is not None:
            self._segment.close()
            self._segment = None


def own_memory(device: str, instance: str) -> OwnMemory:
    """Exportable memory of a worker on ``device`` (cpu or cuda)."""
    if device == "cpu":
        return SharedMemory(instance)
    from transport.cuda import CudaMemory  # needs cupy, which only GPU machines have

    return CudaMemory()


def copy_stream(device: str, own: CacheTensors) -> CopyStream:
    """Where a decode worker on ``device`` pulls."""
    if device == "cpu":
        return CopyThread(own)
    from transport.cuda_pull import CudaCopyStream

    return CudaCopyStream(own)


def open_peer(export: MemoryExport) -> CacheTensors:
    """A peer's region as tensors; the mapping closes when the last of them is dropped.

    Raises PeerGone when the exporter's memory cannot be opened any more.
    """
    match export.kind:
        case "shm":
            mapping = shm.open_segment(export.handle, export.size_bytes)
            buffer = torch.frombuffer(mapping, dtype=torch.uint8)
        case "cuda-ipc":
            from transport.cuda import open_handle

            buffer = open_handle(export.handle, export.size_bytes)
        case _:
            assert_never(export.kind)
    return CacheTensors.over(buffer, export.layout, export.pools)
