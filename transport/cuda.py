"""Cache memory on NVIDIA GPUs: one plain ``cudaMalloc``, exported once through CUDA IPC.

The region is allocated by cupy's runtime calls and not by torch, whose allocator may hand out
virtual-memory segments that cannot be exported. It is never freed while the process lives; the
driver keeps it for as long as a peer has it open, even after the owner's death.
"""

import cupy
import torch
from cupy.cuda import runtime

from transport.errors import PeerGone
from transport.messages import MemoryKind


class CudaMemory:
    """OwnMemory on the current CUDA device."""

    kind: MemoryKind = "cuda-ipc"

    def __init__(self) -> None:
        self._pointer = 0
        self._size_bytes = 0

    @property
    def handle(self) -> str:
        assert self._pointer, "exported before allocated"
        return bytes(runtime.ipcGetMemHandle(self._pointer)).hex()

    @property
    def size_bytes(self) -> int:
        assert self._pointer, "exported before allocated"
        return self._size_bytes

    def allocate(self, size_bytes: int) -> torch.Tensor:
        assert not self._pointer, "allocated twice"
        free, total = runtime.memGetInfo()
        if size_bytes > free:
            raise ValueError(
                f"cache memory: {size_bytes / 2**30:.1f} GiB wanted, "
                f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB free on the GPU"
            )
        self._pointer = runtime.malloc(size_bytes)
        self._size_bytes = size_bytes
        return _as_tensor(self._pointer, size_bytes)

    def close(self) -> None:
        """Nothing to do: the export ends with the process, and peers may still read."""


def open_handle(handle: str, size_bytes: int) -> torch.Tensor:
    """A peer's region as uint8 [size_bytes] on the current device, until this process ends.

    Raises PeerGone when the exporter is dead.
    """
    try:
        pointer = runtime.ipcOpenMemHandle(bytes.fromhex(handle))
    except runtime.CUDARuntimeError as error:
        raise PeerGone(f"a CUDA IPC handle cannot be opened: {error}") from error
    return _as_tensor(pointer, size_bytes)


def _as_tensor(pointer: int, size_bytes: int) -> torch.Tensor:
    memory = cupy.cuda.UnownedMemory(pointer, size_bytes, owner=None)
    array = cupy.ndarray((size_bytes,), dtype=cupy.uint8, memptr=cupy.cuda.MemoryPointer(memory, 0))
    tensor: torch.Tensor = torch.as_tensor(array, device="cuda")
    return tensor
