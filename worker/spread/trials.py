"""Times a few decode steps of a spread group while it is idle, and corrects the table by them.

begin     a group was joined; a table that is kept for groups of its size is used
advance   the group is idle: one trial after another (trial.py)
pause     this worker has something to compute: its memory is given back, times are kept
finish    all trials are done, or the time is over: the table is corrected, and kept on disk

All members go through the same trials, in the same order. A member that is behind another one skips
trials to catch up.
"""

import logging
import time
from collections.abc import Callable
from random import Random

from decode.spread_table import StepTable, shipped
from decode.spread_trials import Point, TimedStep, corrected, differences, points, suffice
from engine.cache.allocator import CacheAllocator
from engine.spread.shapes import Shapes
from worker.spread.kept_tables import KeptTables, NodeTable
from worker.spread.trial import Engines, Trial
from worker.spread.trial_group import TrialGroup
from worker.spread.trial_rows import TrialMemory, TrialRows

MOST_S = 3.0
"""Seconds in all that a member spends on the trials of a group."""

log = logging.getLogger(__name__)


class StepTrials:
    """``StepTimes`` that are measured. Measured tables are ``kept``; ``base`` is the table that is
    corrected. ``seed``: of the random tokens, which differ from member to member. ``sizes``: the
    steps to time, of the shapes of spread steps."""

    given = False

    def __init__(
        self,
        engines: Engines,
        kept: KeptTables,
        seed: str,
        *,
        base: StepTable | None = None,
        sizes: Callable[[Shapes], tuple[Point, ...]] = points,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engines, self._kept, self._sizes = engines, kept, sizes
        self._random, self._clock = Random(seed), clock
        self.base = base or shipped()
        self.node: NodeTable | None = None
        self._group: TrialGroup | None = None
        self._points: tuple[Point, ...] = ()
        self._next = 0
        self._timed: list[TimedStep] = []
        self._spent_s = self._looked_at = 0.0
        self._rows: TrialRows | None = None
        self._trial: Trial | None = None

    @property
    def under_way(self) -> bool:
        return self._rows is not None

    @property
    def held(self) -> TrialMemory:
        return self._rows.held if self._rows is not None else TrialMemory()

    def begin(self, group: TrialGroup) -> None:
        self.pause()
        # A lone member shares with lenders only: it uses the shipped table.
        alone = group.num_members == 1
        self._group, self.node = group, None if alone else self._kept.find(group.num_members)
        self._points = self._sizes(group.shapes) if self.node is None and not alone else ()
        self._next, self._timed, self._spent_s = 0, [], 0.0

    def advance(self, memory: CacheAllocator) -> None:
        group, now = self._group, self._clock()
        if group is None or not self._points:
            return
        if self._rows is not None:
            self._spent_s += now - self._looked_at
        self._looked_at = now
        if self._trial is None and not group.is_idle():
            self.pause()
            return
        if self._rows is None:
            most = max(point.rows for point in self._points)
            self._rows = TrialRows(self._engines.local, memory, most, self._random)
        if self._trial is None:
            self._trial = self._next_trial(group, self._rows)
        if self._trial is None:
            self._finish(group)
        elif not self._trial.advance():
            self._timed += self._trial.timed
            self._trial, self._next = None, self._next + 1

    def pause(self) -> None:
        if self._trial is not None:
            self._trial.settle()
            self._trial = None
        if self._rows is not None:
            self._rows.release()
            self._rows = None
            assert self._group is not None
            self._group.prepare(0)

    def _next_trial(self, group: TrialGroup, rows: TrialRows) -> Trial | None:
        """Begin the next trial that there is memory for; None if this is the end of them."""
        self.node = self._kept.find(group.num_members)
        self._next = max(self._next, group.highest() - 1)
        while self._next < len(self._points) and self._points[self._next].rows > len(rows):
            self._next += 1
        if self.node or self._next >= len(self._points) or self._spent_s >= MOST_S:
            return None
        point = self._points[self._next]
        return Trial(self._next + 1, point, group, rows, self._engines, self._clock)

    def _finish(self, group: TrialGroup) -> None:
        self.pause()
        num, self._points = len(self._points), ()
        if self.node is None and suffice(self._timed, num):
            table = corrected(self.base, self._timed, group.num_members)
            self.node = self._kept.keep(group.num_members, table, self._timed)
        found = differences(self.base, self._timed).items()
        ratios = [f"{least:.2f} to {most:.2f} × {'spread' if spread else 'local'}"
                  for spread, (least, most) in sorted(found)]  # fmt: skip
        log.info(
            "spread: timed %d of %d decode steps in %.1f s, by the table before %s",
            len(self._timed), 2 * num, self._spent_s, ", ".join(ratios) or "unknown",
        )  # fmt: skip
        if self.node is None:
            log.warning("spread: these are too few to correct the table of step times by them")
