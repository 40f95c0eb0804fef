"""The device's second queue: batches of prompts beside steps, as engine/overlap.py computes them.

A batch may run at any time once the host has enqueued all of it, behind the batches before it and
behind all that the first queue had when it began.
"""

from dataclasses import dataclass, field
from random import Random

from engine.batch import ForwardBatch, StepResult
from prefill.limits import RoundLimits
from tests.simulation.fake_engine import FakeEngine, FakeStep
from worker.shares import Shares

SHARES = 2, 3, 5
NUM_PARTS = 3
"""Calls of ``enqueue`` that it takes."""


class OverlappingLimits(RoundLimits):
    """Overlaps all prompts while there are sequences: their tests are many, and prompts short."""

    def __post_init__(self) -> None:
        """``max_tokens_beside_decode`` may be 1."""

    def overlaps(self, *, num_running: int, num_waiting: int) -> bool:
        return bool(num_running and num_waiting)


class RandomShares(Shares):
    """Chooses any share, or none, for each batch of prompts."""

    def __init__(self, rng: Random) -> None:
        super().__init__(None)
        self._rng = rng

    def choose(self, waiting, targets, *, num_ahead: int, num_between: int) -> int:
        assert num_between > 0
        assert all(waited_s >= 0.0 and num_left >= 0 for waited_s, num_left in waiting)
        return self._rng.choice((0, *SHARES))


class OverlappingEngine(FakeEngine):
    """A FakeEngine with an ``overlap``."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.overlap = self
        self.total, self.shares = 8, SHARES
        self.beside: list[FakeOverlappedBatch] = []
        self._first_queue = False

    def overlapped(self, batch: ForwardBatch, share: int) -> "FakeOverlappedBatch":
        assert share in self.shares
        assert all(row.token_ids and row.scoring is None for row in batch.rows)
        self.checks.check(batch)
        self.beside.append(FakeOverlappedBatch(FakeStep(self, batch), list(self.queue)))
        return self.beside[-1]

    def launch(self, batch: ForwardBatch) -> FakeStep:
        prompts = any(row.token_ids is not None for row in batch.rows)
        assert not (prompts and self.beside), "two batches of prompts at once"
        return super().launch(batch)

    @property
    def may_run(self) -> bool:
        return super().may_run or self._may_run_beside

    @property
    def _may_run_beside(self) -> bool:
        return bool(self.beside) and self.beside[0].may_run

    def run_one(self) -> None:
        """The two queues take turns where both may run."""
        self._first_queue = not self._first_queue
        if self._may_run_beside and not (self.queue and self._first_queue):
            self.beside.pop(0).step.execute()
        else:
            super().run_one()


@dataclass(eq=False)
class FakeOverlappedBatch:
    """``behind``: what the first queue had when it began."""

    step: FakeStep
    behind: list
    took_s = None
    num_multiprocessors = 1
    num_enqueued: int = field(default=0)

    @property
    def enqueued(self) -> bool:
        return self.num_enqueued >= NUM_PARTS

    @property
    def done(self) -> bool:
        return self.step.executed

    @property
    def may_run(self) -> bool:
        queue = self.step.engine.queue
        return self.enqueued and not any(each in queue for each in self.behind)

    def enqueue(self, most_s: float = 0.0) -> None:
        assert not self.enqueued, "enqueued twice"
        self.num_enqueued += 1

    def result(self) -> StepResult:
        self.num_enqueued = NUM_PARTS
        while not self.done:
            self.step.engine.run_one()
        return self.step.result()
