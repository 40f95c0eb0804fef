"""A CUDA runtime of one thread: streams run at once, IPC handles name buffers of this process.

Enough to run the CUDA copy stream's own code, with its kernels in Triton's interpreter. What only
a GPU can show (order of streams, speed, real IPC) is in tests/gpu.
"""

import contextlib
import ctypes
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch

from transport.copy import launch as copy_launch

PATCHED = ("transport.copy.cuda", "transport.copy.cuda_pull", "transport.copy.cuda_host")


class Event:
    """An event that has come unless the test holds it back."""

    held_back = False

    def __init__(self, enable_timing: bool = False) -> None:
        pass

    def record(self, stream: object = None) -> None:
        pass

    def query(self) -> bool:
        return not Event.held_back

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: "Event") -> float:
        return 0.25


class Stream:
    waited_for = 0
    device = torch.device("cpu")
    cuda_stream = 0

    def __init__(self, *args: object, **options: object) -> None:
        pass

    def query(self) -> bool:
        return True

    def wait_stream(self, other: object) -> None:
        Stream.waited_for += 1

    def synchronize(self) -> None:
        pass


class RuntimeFake(ModuleType):
    """``cupy.cuda.runtime``: opens what is in ``buffers``, notes what is closed, and pins so many
    pieces of memory."""

    memcpyHostToDevice, memcpyDeviceToHost = 1, 2

    class CUDARuntimeError(RuntimeError):
        def __init__(self, status: int) -> None:
            super().__init__(f"cuda error {status}")
            self.status = status

    def __init__(self) -> None:
        super().__init__("cupy.cuda.runtime")
        self.buffers: dict[str, torch.Tensor] = {}
        self.opened: list[str] = []
        self.closed: list[int] = []
        self.export_error = 0
        self.registered: list[int] = []
        self.max_registered = sys.maxsize
        self.copied: list[tuple[int, int]] = []  # bytes, kind
        self.allocated: list[int] = []  # bytes

    def memGetInfo(self) -> tuple[int, int]:
        return 24 << 30, 80 << 30

    def malloc(self, num_bytes: int) -> int:
        self.allocated.append(num_bytes)
        return len(self.allocated)

    def ipcGetMemHandle(self, pointer: int) -> bytes:
        if self.export_error:
            raise self.CUDARuntimeError(self.export_error)
        return b"handle"

    def ipcOpenMemHandle(self, handle: bytes) -> int:
        name = handle.decode()
        if name not in self.buffers:
            raise self.CUDARuntimeError({"dead": 400, "same number": 201}.get(name, 304))
        self.opened.append(name)
        return self.buffers[name].data_ptr()

    def setDevice(self, device: int) -> None:
        pass

    def hostRegister(self, pointer: int, num_bytes: int, flags: int) -> None:
        if len(self.registered) == self.max_registered:
            raise self.CUDARuntimeError(2)
        self.registered.append(pointer)

    def hostUnregister(self, pointer: int) -> None:
        self.registered.remove(pointer)

    def memcpyAsync(self, target: int, source: int, num_bytes: int, kind: int, stream: int) -> None:
        ctypes.memmove(target, source, num_bytes)
        self.copied.append((num_bytes, kind))

    def ipcCloseMemHandle(self, pointer: int) -> None:
        self.closed.append(pointer)


@contextlib.contextmanager
def installed(patch: pytest.MonkeyPatch) -> Iterator[RuntimeFake]:
    runtime = RuntimeFake()
    cupy, cuda = ModuleType("cupy"), ModuleType("cupy.cuda")
    cupy.cuda, cuda.runtime = cuda, runtime  # type: ignore[attr-defined]
    for name, module in (("cupy", cupy), ("cupy.cuda", cuda)):
        patch.setitem(sys.modules, name, module)
    for name in PATCHED:
        patch.delitem(sys.modules, name, raising=False)
    plain_empty = torch.empty
    patch.setattr(
        torch, "empty", lambda *size, pin_memory=False, **rest: plain_empty(*size, **rest)
    )
    patch.setattr(torch.cuda, "Event", Event)
    patch.setattr(torch.cuda, "Stream", Stream)
    patch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    patch.setattr(torch.cuda, "current_stream", lambda device=None: Stream())
    patch.setattr(copy_launch, "captured", lambda work, stream: work)
    Event.held_back, Stream.waited_for = False, 0
    try:
        yield runtime
    finally:
        for name in PATCHED:
            sys.modules.pop(name, None)
