"""The next decode step of a worker: scheduled, agreed on with its spread group, launched.

A step that is scheduled waits here while the group has not agreed: its rows are what the group was
told. Nothing else is launched meanwhile, or it would hold up the others' GPUs.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal

from decode.lockstep import LOCAL, WAIT
from decode.scheduler import DecodeScheduler
from engine.batch import StepResult
from engine.runner import Engine
from engine.sequence import Scheduled
from worker.launches import Launches
from worker.spread.group import Group

Launched = Literal["launched", "idle", "undecided"]
NOTHING = Scheduled((), ())


class DecodeSteps:
    """Launches the steps of ``sequences``; ``launches`` has them until their results are taken in
    by ``process``, at most ``lookahead`` of them."""

    def __init__(
        self,
        engine: Engine,
        sequences: DecodeScheduler,
        launches: Launches,
        group: Group,
        process: Callable[[Scheduled, StepResult], None],
        lookahead: int,
    ) -> None:
        self._engine = engine
        self._sequences = sequences
        self._launches = launches
        self._group = group
        self._process = process
        self._lookahead = lookahead
        self._scheduled: Scheduled | None = None
        self.undecided = False

    def launch(self, *, willing: bool) -> Launched:
        """Launch the next step, if there is one and it is decided how. ``willing``: this worker has
        nothing else to compute."""
        if not self.undecided:
            self._scheduled = self._sequences.schedule(self._group.room)
        scheduled = self._scheduled or NOTHING
        num_drafts = max((row.num_drafts for row in scheduled.rows), default=0)
        plan = self._group.decide(len(scheduled.rows), num_drafts, willing=willing)
        self.undecided = plan == WAIT
        if plan == WAIT:
            return "undecided"
        if plan == LOCAL:
            # A local step feeds on what a spread one gives, which may be nothing.
            if self._launches.any_spread and self._launches.process(behind=0):
                self._take_back()
                return "undecided"
            if self._scheduled is None:
                return "idle"
            step, spread = self._engine.launch(scheduled.batch), False
        else:
            step, spread = self._group.launch(scheduled.batch, plan), True
        self._scheduled = None
        self._launches.add(scheduled, step, partial(self._take_in, spread), spread=spread)
        self._launches.process(behind=self._lookahead)
        return "launched"

    def _take_in(self, spread: bool, scheduled: Scheduled, result: StepResult) -> None:
        self._group.took(self._launches.took_s, spread=spread, waited_s=result.waited_s)
        self._process(scheduled, result)

    def settle(self) -> None:
        """Have no step under way, and none that waits for the group."""
        self._take_back()
        self._launches.process(behind=0)

    def _take_back(self) -> None:
        if self._scheduled is not None:
            self._sequences.take_back(self._scheduled)
        self._scheduled, self.undecided = None, False
