"""CUDA graphs that share their working memory.

Where the GPU can be divided (divided_gpu.py), graphs of decode steps are captured for all its
multiprocessors, and once for the steps' part of each division. All run the same kernels with the
same grids, so their results are the same bits.
"""

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

import torch

from engine.divided_gpu import DividedGpu, Division

T = TypeVar("T")


class Graph(Generic[T]):
    """A captured pass. ``variants``: for the whole GPU (None) and for each division of ``gpu``, if
    it is divided; each with its result tensors."""

    def __init__(
        self,
        variants: Mapping[Division | None, tuple[torch.cuda.CUDAGraph, T]],
        gpu: DividedGpu | None,
    ) -> None:
        self.variants, self._gpu = variants, gpu

    def replay(self) -> T:
        """Enqueue the pass. Returns its result tensors."""
        graph, result = self.variants[self._gpu.in_use if self._gpu is not None else None]
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
        variants: dict[Division | None, tuple[torch.cuda.CUDAGraph, T]] = {}
        variants[None] = self._captured(forward, None)
        for division in () if self._divided is None else self._divided.divisions:
            variants[division] = self._captured(forward, division.steps)
        return Graph(variants, self._divided)

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
