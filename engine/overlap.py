"""Prompts that are computed beside decode steps, on their part of a divided GPU.

A batch of prompts is some 1,000 kernels, which the host enqueues in tens of ms. So a few layers
are enqueued ahead, and the worker launches decode steps in between. Batches run one behind the
other, each behind the steps that were launched before it. All else keeps to the steps' part of the
GPU while a batch is under way.
"""

from collections import deque
from collections.abc import Generator, Iterator
from contextlib import contextmanager

import torch

from engine.batch import StepResult
from engine.divided_gpu import DividedGpu
from engine.step import Step

LAYERS_AHEAD = 8
"""Enqueued layers that the GPU has not computed yet, of all batches: at 3 ms a layer or more, they
last for longer than a step."""


class OverlappedBatch:
    """A batch of prompts beside decode steps. ``parts`` enqueue its layers one by one, on ``gpu``
    (None: the CPU computes each part at once). ``ahead``: the ends of the enqueued layers that the
    GPU may not have computed yet, of this batch and those before it."""

    def __init__(
        self,
        parts: Generator[None, None, Step],
        gpu: DividedGpu | None,
        ahead: deque[torch.cuda.Event],
    ) -> None:
        self._parts, self._gpu, self._ahead = parts, gpu, ahead
        self._step: Step | None = None
        self._ended: torch.cuda.Event | None = None

    @property
    def enqueued(self) -> bool:
        return self._step is not None

    @property
    def done(self) -> bool:
        """True if ``result`` does not wait."""
        return self.enqueued and (self._ended is None or self._ended.query())

    def enqueue(self, most_ahead: int | None = LAYERS_AHEAD) -> None:
        """Enqueue layers until ``most_ahead`` are not computed yet; None: all that are left."""
        while self._ahead and self._ahead[0].query():
            self._ahead.popleft()
        num_ahead = len(self._ahead)
        with torch.inference_mode(), self._on_prompts():
            while self._step is None and (most_ahead is None or num_ahead < most_ahead):
                num_ahead += 1
                try:
                    next(self._parts)
                except StopIteration as end:
                    self._step = end.value
                if self._gpu is not None:
                    self._ended = self._gpu.prompts.record_event()
                    self._ahead.append(self._ended)

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
        self._ahead: deque[torch.cuda.Event] = deque()

    def begin(self, parts: Generator[None, None, Step]) -> OverlappedBatch:
        """Begin a batch, whose layers ``parts`` enqueue one by one: behind all work that the
        current stream has now."""
        if self._gpu is not None:
            self._gpu.prompts.wait_stream(torch.cuda.current_stream())
        batch = OverlappedBatch(parts, self._gpu, self._ahead)
        self._under_way.append(batch)
        return batch

    def before_launch(self) -> None:
        """Let what is launched next keep to the steps' part of the GPU if a batch is under way."""
        while self._under_way and self._under_way[0].done:
            self._under_way.popleft()
        if self._gpu is not None:
            self._gpu.use(bool(self._under_way))
