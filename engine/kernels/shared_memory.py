"""Sets how a multiprocessor divides its memory between shared memory and the L1 cache.

The driver chooses a division for each kernel, by the shared memory that the kernel needs. A program
that needs another division waits until the multiprocessor is empty. So a kernel with little shared
memory, between two with much, keeps the next one from being launched while it runs
(triton_overlap.py). Therefore all kernels of decode steps ask for the same division. Kernels of
prompts do not: some read their neighbours' inputs again, from the L1 cache.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from triton import knobs

PREFERRED_CARVEOUT = 9
"""CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT of ``cuFuncSetAttribute``, in percent."""


@contextmanager
def most_shared_memory() -> Iterator[None]:
    """Context in which the Triton kernels that are loaded prefer the most shared memory."""
    knobs.runtime.kernel_load_end_hook.add(_prefer_most)
    try:
        yield
    finally:
        knobs.runtime.kernel_load_end_hook.remove(_prefer_most)


def _prefer_most(module: Any, function: int, name: str, group: Any, key: str) -> None:
    cuda = ctypes.CDLL("libcuda.so.1")
    error = cuda.cuFuncSetAttribute(ctypes.c_void_p(function), PREFERRED_CARVEOUT, 100)
    if error:
        raise RuntimeError(f"cuFuncSetAttribute of kernel {name}: CUDA error {error}")
