"""Cache memory on NVIDIA GPUs: one plain ``cudaMalloc``, exported once through CUDA IPC.

cupy's runtime calls allocate the region, and not torch, whose allocator may use virtual-memory
segments, which cannot be exported. The region is never freed while the process lives. The driver
keeps it as long as a peer has it open, even after its owner has ended, so peers close the memory of
an owner that is gone: only then is all memory of that GPU free again.
"""

import time

import cupy
import torch
from cupy.cuda import runtime

from transport.wire.errors import PeerGone
from transport.wire.memory_export import MemoryKind

PAGE_BYTES = 2 << 20
"""A region has whole pages. One that ends within a page is mapped in pages of a few KiB: then a
peer takes 0.5 s to open 64 GiB and 0.13 s to close them, instead of 12 and 1 ms, and its streams
stand still meanwhile (bench/results/h200x2-peer-mapping.txt)."""
UNMAP_S = 0.05
"""From a worker's goodbye until its peers have certainly unmapped its memory: a message by way of
the coordinator, and a round of each peer."""
_INVALID_RESOURCE_HANDLE = 400
"""cudaErrorInvalidResourceHandle."""
_DEVICE_UNINITIALIZED = 201
"""cudaErrorDeviceUninitialized, "invalid device context": as when a process opens its own
export."""


class CudaMemory:
    """OwnMemory on the current CUDA device."""

    kind: MemoryKind = "cuda-ipc"

    def __init__(self) -> None:
        self._handle = ""
        self._size_bytes = 0

    @property
    def handle(self) -> str:
        assert self._handle, "exported before allocated"
        return self._handle

    @property
    def size_bytes(self) -> int:
        assert self._handle, "exported before allocated"
        return self._size_bytes

    def allocate(self, size_bytes: int) -> torch.Tensor:
        """Allocate and export the region. Raises ValueError if the memory is not free, or cannot be
        exported."""
        assert not self._handle, "allocated twice"
        device = torch.cuda.current_device()
        # NOTE: torch and cupy each keep a current device until the runtime is told.
        runtime.setDevice(device)
        pointer = allocate_pages(size_bytes)
        self._handle = export_handle(pointer)
        self._size_bytes = size_bytes
        return _as_tensor(pointer, size_bytes, device)

    def lost(self) -> str:
        return ""  # the handle is valid until the process ends

    def await_unmapped(self) -> None:
        """Wait UNMAP_S. Unmapping a dead owner's memory frees it, and the peer's GPU stands still
        meanwhile, 15 to 40 ms; while the owner lives, unmapping takes 0.3 ms."""
        time.sleep(UNMAP_S)

    def close(self) -> None:
        """No effect: the export ends with the process, and peers may still read."""


def allocate_pages(size_bytes: int) -> int:
    """The address of new memory on the current device, in whole pages. Raises ValueError if so much
    is not free."""
    free, total = runtime.memGetInfo()
    if size_bytes > free:
        raise ValueError(
            f"cache memory: {size_bytes / 2**30:.1f} GiB wanted, "
            f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB free on the GPU"
        )
    return int(runtime.malloc(-(-size_bytes // PAGE_BYTES) * PAGE_BYTES))


def export_handle(pointer: int) -> str:
    """The CUDA IPC handle of an allocation, in hex, to be opened by another process.

    Raises ValueError for memory that cannot be exported: virtual-memory (VMM) allocations, as
    torch's expandable segments and stream-ordered pools are, or a driver without CUDA IPC.
    """
    try:
        return bytes(runtime.ipcGetMemHandle(pointer)).hex()
    except runtime.CUDARuntimeError as error:
        raise ValueError(
            f"cache memory: this memory cannot be exported through CUDA IPC ({error}). It must be "
            "plain cudaMalloc memory, not a virtual-memory mapping such as "
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True makes, and the driver must support "
            "CUDA IPC (not under WSL, vGPU or MPS with limited rights)"
        ) from error


def open_handle(handle: str, *, peer: str) -> int:
    """The address of a peer's region in this process, on the current device.

    Raises PeerGone, with what to look at, when it cannot be opened.
    """
    try:
        return int(runtime.ipcOpenMemHandle(bytes.fromhex(handle)))
    except (runtime.CUDARuntimeError, ValueError) as error:
        raise PeerGone(
            f"cannot open the GPU memory of {peer}: {error}. {_advice(error)}"
        ) from error


def close_handle(pointer: int) -> None:
    """Unmap what ``open_handle`` mapped. No copy may be reading it."""
    runtime.ipcCloseMemHandle(pointer)


def _advice(error: Exception) -> str:
    """Advice to the operator about an error of the driver."""
    code = getattr(error, "status", None)
    if code == _INVALID_RESOURCE_HANDLE:
        return "Its process has ended, or exported the memory under another driver"
    if code == _DEVICE_UNINITIALIZED:
        return (
            "The driver takes it for this process's own memory, since both processes have the same "
            "number in PID namespaces of their own. Let all workers share one PID namespace "
            "(in containers: --pid host)"
        )
    return (
        "Both processes need to see both GPUs (no device mask that hides the peer's), a GPU "
        "without MIG, the same driver, and a /proc that belongs to their own PID namespace "
        "(in containers: a fresh /proc, or --pid and --ipc shared); see `baton doctor`"
    )


def _as_tensor(pointer: int, size_bytes: int, device: int) -> torch.Tensor:
    memory = cupy.cuda.UnownedMemory(pointer, size_bytes, owner=None, device_id=device)
    array = cupy.ndarray((size_bytes,), dtype=cupy.uint8, memptr=cupy.cuda.MemoryPointer(memory, 0))
    tensor: torch.Tensor = torch.as_tensor(array, device=torch.device("cuda", device))
    assert tensor.data_ptr() == pointer, "torch copied the region instead of wrapping it"
    return tensor
