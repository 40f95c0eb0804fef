"""Times decode steps of one size, each launched before the result of the one before is read."""

from collections import deque
from collections.abc import Callable
from itertools import pairwise
from statistics import median

from worker.spread.trial_rows import TrialStep

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
