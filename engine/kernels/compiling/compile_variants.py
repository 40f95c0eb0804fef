# mypy: disable-error-code="no-untyped-def"
"""``python -m engine.kernels.compiling.compile_variants FILE``: compile the variants noted in FILE.

It compiles on all cores into Triton's cache, unless that was done since the kernels last changed.
It uses no GPU. If several processes share a cache, as the workers of a node that start together do,
one compiles while the others wait and then find everything done.
"""

import ctypes
import fcntl
import json
import os
import signal
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path

from engine.kernels.compiling.notes import for_triton
from engine.kernels.compiling.variants import Variants, current_sources

LOCK = "baton-variants.lock"
MAX_PROCESSES = 16
"""The most processes that compile; each takes some 300 MB."""
COMPILE_S = 90.0
PR_SET_PDEATHSIG = 1
"""PR_SET_PDEATHSIG of <linux/prctl.h>."""


class NoGpu:
    """Replaces Triton's driver: names the target of the compilation, and can launch nothing."""

    def __init__(self, target) -> None:
        self._target = target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self):
        return self._target


def die_with_parent(parent: int) -> None:
    """Let the kernel end this process with its parent; otherwise it would keep the lock, waiting
    for more to compile."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def compile_note(note: str, arch: int) -> float | None:
    """Compile a noted variant into Triton's cache. Returns the seconds it took; None if there is no
    such kernel or variant any more."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    module, _, name = json.loads(note)["kernel"].rpartition(".")
    if not module.startswith("engine."):
        return None
    driver.set_active(NoGpu(GPUTarget("cuda", arch, 32)))
    began = time.perf_counter()
    try:
        getattr(import_module(module), name).preload(for_triton(note, arch))
    except Exception:  # any error of a compiler: the worker gets it too, if it needs the variant
        return None
    return time.perf_counter() - began


def compile_all(notes: tuple[str, ...], arch: int, limit_s: float = COMPILE_S) -> tuple[str, ...]:
    """Compile ``notes``; returns those that could be compiled, slowest first. Raises
    TimeoutError."""
    from engine.kernels.compiling.cache_keys import settle_cache_keys

    settle_cache_keys()  # imports all kernels too, once for the processes that are forked
    num_processes = min(len(os.sched_getaffinity(0)), MAX_PROCESSES)
    with ProcessPoolExecutor(
        num_processes, get_context("fork"), die_with_parent, (os.getpid(),)
    ) as processes:
        took_s = processes.map(partial(compile_note, arch=arch), notes, timeout=limit_s)
        done = [(each, note) for note, each in zip(notes, took_s, strict=True) if each is not None]
    return tuple(note for _, note in sorted(done, reverse=True))


def main(file: Path) -> None:
    os.nice(10)  # the worker loads weights meanwhile
    with (file.parent / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        known, sources = Variants.read(file), current_sources()
        if known.sources != sources:
            notes = compile_all(known.notes, known.arch)
            Variants(sources, known.arch, notes).write(file)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
