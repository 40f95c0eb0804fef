"""Prompts that are computed beside decode steps, on their part of a divided GPU.

A batch of prompts is some 1,000 kernels, which the host enqueues in tens of ms. So a few layers
are enqueued ahead, and the worker launches decode steps in between. Batches run one behind the
other, each behind the steps that were launched before it, and each with its own division of the
GPU. All else keeps to the steps' part of that division meanwhile.
"""

import time
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from math import inf

import torch

from engine.batch import StepResult
from engine.divided_gpu import DividedGpu, Division
from engine.step import Step

LAYERS_AHEAD = 24
"""Enqueued layers that the GPU has not computed yet, of all batches: some 600 kernels. The driver
lets the host wait behind about 1,000."""


class OverlappedBatch:
    """A batch of prompts beside decode steps. ``parts`` enqueue its layers one by one, on the
    prompts' part of ``division`` (None: the CPU computes each part at once), behind the batch
    ``before`` it. ``ahead``: the ends of the enqueued layers that the GPU may not have computed
    yet, of this batch and those before it."""

    def __init__(
        self,
        parts: Generator[None, None, Step],
        division: Division | None,
        ahead: deque[torch.cuda.Event],
        before: "OverlappedBatch | None",
    ) -> None:
        self.division = division
        self._parts, self._ahead, self._before = parts, ahead, before
        self._step: Step | None = None
        self._ended: torch.cuda.Event | None = None

    @property
    def enqueued(self) -> bool:
        return self._step is not None

    @property
    def done(self) -> bool:
        """True if ``result`` does not wait."""
        return self.enqueued and (self._ended is None or self._ended.query())

    @property
    def took_s(self) -> float | None:
        """How long the GPU computed it; None if it is not done."""
        return None if self._step is None else self._step.took_s

    @property
    def num_multiprocessors(self) -> int:
        """How many compute it."""
        return 1 if self.division is None else self.division.num_for_prompts

    def enqueue(self, most_s: float = inf, most_ahead: float = LAYERS_AHEAD) -> None:
        """Enqueue layers until ``most_ahead`` are not computed yet, or the host has taken
        ``most_s`` for that."""
        began = time.perf_counter()
        while self._ahead and self._ahead[0].query():
            self._ahead.popleft()
        num_ahead = len(self._ahead)
        with torch.inference_mode(), self._on_prompts():
            while self._step is None and num_ahead < most_ahead:
                num_ahead += 1
                try:
                    next(self._parts)
                except StopIteration as end:
                    self._step = end.value
                if self.division is not None:
                    self._ended = self.division.prompts.record_event()
                    self._ahead.append(self._ended)
                if time.perf_counter() - began >= most_s:
                    break

    def result(self) -> StepResult:
        """Wait for the batch, and read its results."""
        self.enqueue(most_ahead=inf)
        assert self._step is not None
        if self._ended is not None:
            self._ended.synchronize()
        return self._step.result()

    @contextmanager
    def _on_prompts(self) -> Iterator[None]:
        if self.division is None:
            yield
            return
        if self._before is not None:
            assert self._before.enqueued, "batches are enqueued one behind the other"
            if self._before._ended is not None:
                self.division.prompts.wait_event(self._before._ended)
            self._before = None
        with torch.cuda.stream(self.division.prompts):
            yield


class Overlap:
    """The batches of prompts that are under way beside decode steps, on the divided ``gpu``.
    ``shares``: the numbers of multiprocessors that steps can have meanwhile, of ``total``."""

    def __init__(self, gpu: DividedGpu | None) -> None:
        self._gpu = gpu
        divisions = () if gpu is None else gpu.divisions
        self._divisions = {each.num_for_steps: each for each in divisions}
        self.shares = tuple(sorted(self._divisions))
        self.total = 1 if gpu is None else gpu.total
        self._under_way: deque[OverlappedBatch] = deque()
        self._ahead: deque[torch.cuda.Event] = deque()

    def begin(self, parts: Generator[None, None, Step], share: int) -> OverlappedBatch:
        """Begin a batch, whose layers ``parts`` enqueue one by one: behind all work that the
        current stream has now. Steps have ``share`` of the multiprocessors, one of ``shares``,
        while it is computed."""
        division = self._divisions.get(share)
        if self._gpu is not None:
            assert division is not None, f"no division leaves steps {share} multiprocessors"
            division.prompts.wait_stream(torch.cuda.current_stream())
        before = self._under_way[-1] if self._under_way else None
        batch = OverlappedBatch(parts, division, self._ahead, before)
        self._under_way.append(batch)
        return batch

    def before_launch(self) -> None:
        """Let what is launched next keep to the steps' part of the GPU if a batch is under way."""
        while self._under_way and self._under_way[0].done:
            self._under_way.popleft()
        if self._gpu is not None:
            self._gpu.use(self._under_way[0].division if self._under_way else None)
