"""Timing of the kernel benchmarks: calls in a CUDA graph, compared with the floor of an H200."""

from collections.abc import Callable, Sequence
from typing import Any

BYTES_PER_S, FLOPS_PER_S = 4.3e12, 790e12
"""A device copy on an H200, and an 8192³ product in bfloat16."""


def seconds_per_call(calls: Sequence[Callable[[], Any]], rep_ms: int = 100) -> float:
    """Median time of one of ``calls``. They cost the same and touch different memory, so that
    their data come from memory and not from L2. They are captured one after the other."""
    from triton.testing import do_bench_cudagraph

    def once() -> None:
        for call in calls:
            call()

    taken_ms: float = do_bench_cudagraph(once, rep=rep_ms, return_mode="median")
    return taken_ms * 1e-3 / len(calls)


def floor_s(num_bytes: float, flops: float = 0.0) -> float:
    """The least time for moving ``num_bytes`` and computing ``flops``."""
    return max(num_bytes / BYTES_PER_S, flops / FLOPS_PER_S)
