"""``python -m bench.peer_mapping``: how long a worker takes to open and close a peer's GPU memory.

A process on another GPU allocates memory of a size; this one opens it through CUDA IPC, and closes
it. Streams of a worker stand still meanwhile. One line a size.
"""

import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Annotated, TypeVar

import torch
import typer

MIB, GIB = 1 << 20, 1 << 30
SIZES = (
    64 * GIB, 64 * GIB + 512 * MIB, 64 * GIB + 2 * MIB, 64 * GIB + 4096, 2 * GIB, 2 * GIB + 4096,
)  # fmt: skip
_T = TypeVar("_T")


def owner(weights_gib: float) -> None:
    """Answer each size in bytes on stdin with the handle of so much memory, and free it at the next
    line. ``weights_gib`` of torch's memory lie beside it."""
    from cupy.cuda import runtime

    weights = torch.empty(int(weights_gib * GIB), dtype=torch.uint8, device=use(1))
    for line in sys.stdin:
        pointer = runtime.malloc(int(line))
        print(bytes(runtime.ipcGetMemHandle(pointer)).hex(), flush=True)
        sys.stdin.readline()
        runtime.free(pointer)
    del weights


def use(index: int) -> torch.device:
    """Make a GPU the current one, of torch and cupy; the last one where there are fewer."""
    from cupy.cuda import runtime

    device = torch.device("cuda", min(index, torch.cuda.device_count() - 1))
    torch.cuda.set_device(device)
    runtime.setDevice(device.index)
    torch.zeros(1, device=device)
    return device


def timed(work: Callable[[], _T]) -> tuple[_T, float]:
    """What ``work`` returns, and how many ms it took."""
    began = time.perf_counter()
    found = work()
    return found, 1e3 * (time.perf_counter() - began)


def main(
    weights_gib: Annotated[float, typer.Option(help="The owner's other memory, GiB.")] = 0.0,
    owns: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    if owns:
        owner(weights_gib)
        return
    from cupy.cuda import runtime

    use(0)
    command = [sys.executable, "-m", "bench.peer_mapping", "--owns", "--weights-gib"]
    with subprocess.Popen(
        [*command, str(weights_gib)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for size in SIZES:
            process.stdin.write(f"{size}\n")
            process.stdin.flush()
            handle = bytes.fromhex(process.stdout.readline())
            address, open_ms = timed(partial(runtime.ipcOpenMemHandle, handle))
            _, close_ms = timed(partial(runtime.ipcCloseMemHandle, address))
            print(f"{size:12} bytes: open {open_ms:6.1f} ms, close {close_ms:6.1f} ms", flush=True)
            process.stdin.write("free\n")
            process.stdin.flush()
        process.stdin.close()


if __name__ == "__main__":
    typer.run(main)
