"""The batches that the engine computes, oldest first, until the worker has processed their results.

A spread step may abort (decode/lockstep.py): then it and the spread steps launched behind it are
taken back, and the sequences take their next step from where they were. Batches of prompts behind
it are computed all the same, since they touch no running sequence.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from engine.batch import StepResult
from engine.sequence import Scheduled
from engine.step import Step

Process = Callable[[Scheduled, StepResult], None]


@dataclass(frozen=True)
class _Launch:
    """One launched batch, and what is called with its result."""

    scheduled: Scheduled
    step: Step
    process: Process
    spread: bool
    launched_at: float


class Launches:
    """The launched batches of one worker. After a spread step has aborted, ``aborted`` is called
    with the ranks of the members that did not take part in time. Then ``take_back`` undoes the
    scheduling of each step that was not computed.

    While a result is processed, ``took_s`` is the time that its batch took: since its launch, or
    since the batch before it was done.
    """

    def __init__(
        self,
        take_back: Callable[[Scheduled], None],
        aborted: Callable[[tuple[int, ...]], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.took_s = 0.0
        self._take_back = take_back
        self._aborted = aborted
        self._launched: deque[_Launch] = deque()
        self._num_spread = 0
        self._clock = clock
        self._done_at = -inf

    def __len__(self) -> int:
        return len(self._launched)

    @property
    def any_spread(self) -> bool:
        """True if a spread step has not been processed yet."""
        return self._num_spread > 0

    def add(
        self, scheduled: Scheduled, step: Step, process: Process, *, spread: bool = False
    ) -> None:
        """Add a launched batch. ``process`` is called with its result."""
        self._num_spread += spread
        self._launched.append(_Launch(scheduled, step, process, spread, self._clock()))

    def process(self, *, behind: int) -> bool:
        """Wait for the oldest batches and process their results, until at most ``behind`` are under
        way. Returns True if steps were taken back; then no batch is under way."""
        aborted: list[Scheduled] = []
        late: tuple[int, ...] = ()
        while len(self._launched) > (0 if aborted else behind):
            launch = self._launched.popleft()
            result = launch.step.result()
            self._num_spread -= launch.spread
            began_at, self._done_at = max(launch.launched_at, self._done_at), self._clock()
            self.took_s = self._done_at - began_at
            if result.aborted:
                late = late or result.late
                aborted.append(launch.scheduled)
            else:
                assert not (aborted and launch.spread), "computed behind an aborted step"
                launch.process(launch.scheduled, result)
        if aborted:
            self._aborted(late)
        for scheduled in aborted:
            self._take_back(scheduled)
        return bool(aborted)
