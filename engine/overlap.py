"""Prompts that are computed beside decode steps, on their part of a divided GPU.

A batch of prompts is some 1,000 kernels, which the host enqueues in tens of ms. So it is enqueued a
few layers at a time, and the worker launches decode steps in between. Batches run one behind the
other, each behind the steps that were launched before it. Steps keep to their part of the GPU while
a batch is under way.
"""

from collections import deque
from collections.abc import Generator, Iterator
from contextlib import contextmanager

import torch

from engine.batch import StepResult
from engine.divided_gpu import DividedGpu
from engine.step import Step

LAYERS_AT_ONCE = 10
"""The host enqueues so many layers of a pass in about the time of a step."""


class OverlappedBatch:
    """A batch of prompts beside decode steps. ``parts`` enqueue its layers one by one, on ``gpu``
    (None: the CPU computes each part at once)."""

    def __init__(self, parts: Generator[None, None, Step], gpu: DividedGpu | None) -> None:
        self._parts, self._gpu = parts, gpu
        self._step: Step | None = None
        self._ended: torch.cuda.Event | None = None

    @property
    def enqueued(self) -> bool:
        return self._step is not None

    @property
    def done(self) -> bool:
        """True if ``result`` does not wait."""
        return self.enqueued and (self._ended is None or self._ended.query())

    def enqueue(self, num_layers: int | None = LAYERS_AT_ONCE) -> None:
        """Enqueue the next layers; None: all that are left."""
        with torch.inference_mode(), self._on_prompts():
            num_enqueued = 0
            while self._step is None and num_enqueued != num_layers:
                num_enqueued += 1
                try:
                    next(self._parts)
                except StopIteration as end:
                    self._step = end.value
                    if self._gpu is not None:
                        self._ended = self._gpu.prompts.record_event()

    def result(self) -> StepResult:
        """Wait for the batch, and read its results."""
        self.enqueue(None)
        assert self._step is not None
        if self._ended is not None:
            self._ended.synchronize()
        return self._step.result()

    @contextmanager
    def _on_prompts(self) -> Iterator[None]:
        if self._gpu is None:
            yield
            return
        with torch.cuda.stream(self._gpu.prompts):
            yield


class Overlap:
    """The batches of prompts that are under way beside decode steps, on the divided ``gpu``."""

    def __init__(self, gpu: DividedGpu | None) -> None:
        self._gpu = gpu
        self._under_way: deque[OverlappedBatch] = deque()

    def begin(self, parts: Generator[None, None, Step]) -> OverlappedBatch:
        """Begin a batch, whose layers ``parts`` enqueue one by one: behind all work that the
        current stream has now."""
        if self._gpu is not None:
            self._gpu.prompts.wait_stream(torch.cuda.current_stream())
        batch = OverlappedBatch(parts, self._gpu)
        self._under_way.append(batch)
        return batch

    def before_step(self) -> None:
        """Let the next decode step keep to its part of the GPU if a batch is under way."""
        while self._under_way and self._under_way[0].done:
            self._under_way.popleft()
        if self._gpu is not None:
            self._gpu.in_use = bool(self._under_way)
