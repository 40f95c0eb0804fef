"""One trial: decode steps of one size, timed as local ones and then as ones of all members.

prefill   the sequences' prompts, a batch a call
local     steps of this worker alone, a step a call
spread    steps of all members, when all have come to this trial
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from statistics import median

from decode.lockstep import LOCAL, WAIT
from decode.spread_table import LOCAL as NOT_SHARED
from decode.spread_trials import Point, TimedStep
from engine.batch import ForwardBatch, SpreadPlan
from engine.spread.interface import Spreading
from engine.step import Step
from worker.spread.trial_group import TrialGroup
from worker.spread.trial_rows import Computes, TrialRows, TrialStep

WARM_UP_STEPS, TIMED_STEPS = 2, 4
NUM_STEPS = WARM_UP_STEPS + TIMED_STEPS


class StepTimer:
    """``aborted``: launched steps were taken back."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._under_way: deque[TrialStep] = deque()
        self._read_at: list[float] = []
        self.num_launched = 0
        self.aborted = False

    @property
    def has_launched_all(self) -> bool:
        return self.num_launched == NUM_STEPS

    @property
    def ms(self) -> float:
        """Time from one step to the next, once all have been read."""
        return 1e3 * median([b - a for a, b in pairwise(self._read_at)][-TIMED_STEPS:])

    def launched(self, step: TrialStep) -> None:
        """Take a step that was launched now, and wait for all launched before it."""
        self.num_launched += 1
        self._under_way.append(step)
        self._read(behind=1)
        if self.aborted:
            self.settle()

    def settle(self) -> None:
        """Wait until no step is under way."""
        self._read(behind=0)

    def _read(self, *, behind: int) -> None:
        while len(self._under_way) > behind:
            self.aborted |= self._under_way.popleft().result().aborted
            self._read_at.append(self._clock())


PATIENCE_S = 0.5
"""Seconds that a member waits for the others to come to a trial."""


@dataclass(frozen=True)
class Engines:
    """``local`` computes local batches, ``spreading`` spread steps of the same cache."""

    local: Computes
    spreading: Spreading

    def launch_spread(self, plan: SpreadPlan, batch: ForwardBatch) -> Step:
        return self.spreading.launch(batch, plan)


class Trial:
    """The trial of this ``number``. ``timed``: its results so far."""

    def __init__(
        self,
        number: int,
        point: Point,
        group: TrialGroup,
        rows: TrialRows,
        engines: Engines,
        clock: Callable[[], float],
    ) -> None:
        self._number, self._point = number, point
        self._group, self._rows, self._engines, self._clock = group, rows, engines, clock
        self._local, self._spread = StepTimer(clock), StepTimer(clock)
        self._waits_since: float | None = None
        self._num_tokens = 0
        self.timed: list[TimedStep] = []
        group.prepare(number)

    def advance(self) -> bool:
        """Launch at most one step, and wait for the one before. Returns False at the end."""
        rows, drafts = self._point
        if not self._local.num_launched and self._rows.prefill(rows, 2 * NUM_STEPS * (1 + drafts)):
            return True
        if not self._local.has_launched_all:
            self._local.launched(self._rows.launch(rows, drafts, self._engines.local.launch))
            return True
        if self._waits_since is None:
            self._local.settle()
            num_tokens, ms = rows * (1 + drafts), self._local.ms
            self.timed.append(TimedStep(NOT_SHARED, rows, drafts, num_tokens, ms))
            self._waits_since = self._clock()
        return self._share(self._waits_since)

    def settle(self) -> None:
        """Wait until none of its steps is under way."""
        self._local.settle()
        self._spread.settle()
        if self._spread.aborted:
            self._group.aborted()

    def _share(self, waits_since: float) -> bool:
        (rows, drafts), timer, group = self._point, self._spread, self._group
        if timer.aborted or timer.has_launched_all:
            self.settle()
            if not timer.aborted:
                step = TimedStep(group.num_members, rows, drafts, self._num_tokens, timer.ms)
                self.timed.append(step)
            return False
        together = group.decide(self._number, rows, drafts)
        if together == WAIT:
            return True
        if together == LOCAL:
            late = self._clock() - waits_since > PATIENCE_S or group.highest() > self._number
            if late or timer.num_launched:
                self.settle()
                return False
            return True
        self._num_tokens = together.total
        plan = group.plan(together, first=not timer.num_launched)
        timer.launched(self._rows.launch(rows, drafts, partial(self._engines.launch_spread, plan)))
        return True
