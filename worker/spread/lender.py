"""A prefill worker's place in a spread group: while it has nothing to compute it lends its
bandwidth.

The next step is launched behind the one under way. A prompt that comes meanwhile waits for these
two, and for no other one.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from typing import Literal, NamedTuple

from decode.lending import AHEAD, LendingRounds
from decode.lockstep import LOCAL
from engine.batch import ForwardBatch, SpreadPlan
from engine.cache.allocator import CacheAllocator
from engine.spread.interface import Lending, LentStep
from engine.step import Step
from worker.spread.peers import read_all
from worker.spread.place import LOOK_IDLE_S, LOOK_S, GroupPlace, plan_of
from worker.spread.records import Records
from worker.spread.trial_rows import TrialMemory

NEXT_S = 0.02
"""Seconds after a lent step in which the worker does not sleep, to launch the next one at once."""


class UnderWay(NamedTuple):
    """A launched step, and when it was launched."""

    step: LentStep
    launched_at: float


log = logging.getLogger(__name__)


class Lender(GroupPlace[LendingRounds]):
    """``engine`` computes a lender's part of steps."""

    trial_memory = TrialMemory()
    in_step = others_decode = holds_prompts = is_awaited = False
    """A lender has no sequences. So no member waits for it, and its prompts begin at once."""

    def __init__(
        self,
        engine: Lending,
        instance: str,
        records: Records,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(engine, instance, records)
        self._engine, self._clock = engine, clock
        self._under_way: deque[UnderWay] = deque()
        self._others_idle = True
        self._lent_at = -inf

    @property
    def look_s(self) -> float:
        if self._rounds is None:
            return inf
        if self._under_way or self._clock() - self._lent_at < NEXT_S:
            return 0.0
        return LOOK_IDLE_S if self._others_idle else LOOK_S

    def when_idle(self, memory: CacheAllocator, *, willing: bool, empty: bool) -> None:
        if self._rounds is None:
            return
        records = read_all(self._peers.decoding)
        self._others_idle = not any(record and record.rows for record in records)
        together = self._rounds.decide(records, willing=willing)
        self._publish(self._rounds)
        if together is not None:
            generation, first = self._rounds.record.generation, not self._under_way
            plan = plan_of(generation, together, self._engine.shapes, first=first)
            self._under_way.append(UnderWay(self._engine.lend(plan), self._clock()))
        while len(self._under_way) == AHEAD or (
            self._under_way and self._under_way[0].step.has_ended
        ):
            self._read(self._rounds)

    def _read(self, rounds: LendingRounds) -> None:
        """Wait for the end of the oldest step, and count it."""
        step, launched_at = self._under_way.popleft()
        lent = step.result()
        began, self._lent_at = max(launched_at, self._lent_at), self._clock()
        rounds.done()
        self._publish(rounds)
        if lent.aborted:
            self._tally.aborted()
        elif lent.took_part:
            self._tally.record_step(self._lent_at - began, spread=True)
        for rank in lent.late:
            peer = self._peers.members[rank]
            times = self._tally.was_late(peer)
            log.warning("%s did not take part in a spread step in time (%d times)", peer, times)

    def before_prompts(self) -> None:
        """No member waits for a lender, and prompts are launched behind the steps under way."""

    def behind_prompts(self) -> None:
        self._stop_lending()

    def _stop_lending(self) -> None:
        self._end_steps()
        self._mark_unavailable()

    def leave(self) -> None:
        self._end_steps()
        super().leave()

    def _end_steps(self) -> None:
        while self._rounds is not None and self._under_way:
            self._read(self._rounds)

    def interrupt(self) -> None:
        """What it lends ends before anything else is launched."""

    def max_rows(self, wanted: int) -> int:
        """A decode step of this worker's own takes all."""
        return wanted

    def decide(self, num_rows: int, num_drafts: int = 0, *, willing: bool) -> Literal["local"]:
        """A decode step of this worker's own is never shared out, and keeps it from lending, as
        prompts do (not ``willing``)."""
        if num_rows or not willing:
            self._stop_lending()
        return LOCAL

    def launch(self, batch: ForwardBatch, plan: SpreadPlan) -> Step:
        raise AssertionError("a spread step of a lender's own")

    def record_step(self, seconds: float, *, spread: bool, waited_s: Sequence[float] = ()) -> None:
        """Count a decode step of its own; what it lends is counted where it ends."""
        self._tally.record_step(seconds, spread=False)

    def aborted(self, late: tuple[int, ...]) -> None:
        raise AssertionError("a spread step aborted that was not launched")

    def _begin(self, generation: int) -> LendingRounds:
        return LendingRounds(generation)
