"""CUDA graphs that share their working memory.

Graphs of decode steps are captured twice where the GPU can be divided (divided_gpu.py): for all its
multiprocessors, and for the part that steps have while prompts are computed beside them. Both run
the same kernels with the same grids, so their results are the same bits.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

import torch

from engine.divided_gpu import DividedGpu

T = TypeVar("T")


class Graph(Generic[T]):
    """A captured pass. ``variants``: for the whole GPU, and for the steps' part of a divided one,
    if there is one; each with its result tensors."""

    def __init__(self, *variants: tuple[torch.cuda.CUDAGraph, T], gpu: DividedGpu | None) -> None:
        self.variants, self._gpu = variants, gpu

    def replay(self) -> T:
        """Enqueue the pass. Returns its result tensors."""
        divided = self._gpu is not None and self._gpu.in_use
        graph, result = self.variants[int(divided)]
        graph.replay()
        return result


class GraphPool:
    """Graphs that are launched one after another on one stream, and therefore share their working
    memory. Captured largest first, they need little more than the largest. The memory of returned
    tensors is not shared, so logits are written to memory from outside."""

    def __init__(self, divided: DividedGpu | None = None) -> None:
        self._divided = divided
        self._first: torch.cuda.CUDAGraph | None = None

    def capture(self, forward: Callable[[], T]) -> Graph[T]:
        """Capture ``forward``, which has run before."""
        streams = [None] if self._divided is None else [None, self._divided.steps]
        return Graph(*(self._captured(forward, each) for each in streams), gpu=self._divided)

    def _captured(
        self, forward: Callable[[], T], stream: torch.cuda.Stream | None
    ) -> tuple[torch.cuda.CUDAGraph, T]:
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        pool = self._first.pool() if self._first else None
        with torch.cuda.graph(graph, pool=pool, stream=stream):
            result = forward()
        self._first = self._first or graph
        return graph, result
