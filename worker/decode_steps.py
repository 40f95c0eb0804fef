"""A worker's decode steps: scheduled, agreed on with its spread group, launched, and processed.

A step that is scheduled waits here while the group has not agreed: its rows are what the group was
told. Nothing else is launched meanwhile, or it would hold up the others' GPUs.
"""

from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

from decode.lockstep import LOCAL, WAIT
from engine.batch import SpreadPlan, StepResult
from engine.sequence import Scheduled
from transport.wire.spread import SpreadGroup, SpreadJoined
from worker.handoff import first_steps
from worker.launches import Launches
from worker.room import Room
from worker.spread.group import Group

NOTHING = Scheduled((), ())
UNDECIDED: Final = "undecided"


@dataclass(frozen=True)
class PlannedStep:
    """A step to be launched now: by the group as ``plan`` says, or by this worker alone."""

    scheduled: Scheduled
    plan: SpreadPlan | Literal["local"]


class DecodeSteps:
    """The decode steps of the sequences in ``room``. ``undecided``: a scheduled step waits for the
    group's decision. ``launches`` has the launched steps until they are processed."""

    def __init__(self, room: Room, launches: Launches, group: Group) -> None:
        self.undecided = False
        self._room = room
        self._launches = launches
        self._group = group
        self._scheduled: Scheduled | None = None

    def schedule(self, *, willing: bool) -> PlannedStep | Literal["undecided"] | None:
        """The next step; None if there is none, and UNDECIDED if nothing may be launched in this
        round. ``willing``: this worker has nothing else to compute."""
        if not self.undecided:
            self._scheduled = self._room.sequences.schedule(self._group.max_rows)
            if self._scheduled is not None:
                self._room.bind_new(self._scheduled)
        scheduled = self._scheduled or NOTHING
        num_drafts = max((row.num_drafts for row in scheduled.rows), default=0)
        plan = self._group.decide(len(scheduled.rows), num_drafts, willing=willing)
        self.undecided = plan == WAIT
        if plan == WAIT:
            return UNDECIDED
        if plan == LOCAL:
            # A local step feeds on what a spread one gives, which may be nothing.
            if self._launches.any_spread and self._launches.process(behind=0):
                self._take_back()
                return UNDECIDED
            if self._scheduled is None:
                return None
        self._scheduled = None
        return PlannedStep(scheduled, plan)

    def launch(self, planned: PlannedStep) -> None:
        """Launch a step."""
        scheduled, plan = planned.scheduled, planned.plan
        spread = plan != LOCAL
        if plan == LOCAL:
            enqueue = partial(self._room.engine.launch, scheduled.batch)
        else:
            enqueue = partial(self._group.launch, scheduled.batch, plan)
        self._launches.launch(scheduled, enqueue, partial(self._process, spread), spread=spread)

    def join_group(self, group: SpreadGroup) -> SpreadJoined | None:
        """Join a spread group with no step under way. Returns the answer to the coordinator; None
        if this worker is not a member."""
        self._settle()
        return self._group.join(group)

    def leave_group(self) -> None:
        """Leave the spread group with no step under way, if this worker takes part in groups."""
        if self._group.export is not None:
            self._settle()
            self._group.leave()

    def interrupt_trials(self) -> None:
        """Give back the memory of steps that the idle group times: there is an order."""
        self._group.interrupt()

    def _process(self, spread: bool, scheduled: Scheduled, result: StepResult) -> None:
        """Report the tokens of a step whose result has come."""
        room = self._room
        self._group.record_step(self._launches.took_s, spread=spread, waited_s=result.waited_s)
        if scheduled.rows:
            each = sum(map(len, result.sampled)) / len(scheduled.rows)
            room.shares.record_step(self._launches.took_s, self._launches.took_on, each)
        first = first_steps(scheduled, room.clock())
        tokens, broken = room.sequences.process_results(scheduled, result)
        for sequence, error in broken:
            if not error:
                room.prompts.invalidate_prefixes(sequence)
            room.reports.sampling_failed(sequence, error)
        room.reports.tokens(scheduled, tokens, first)

    def _settle(self) -> None:
        """Take back the step that waits for the group, and process all that are launched."""
        self._take_back()
        self._launches.process(behind=0)

    def _take_back(self) -> None:
        if self._scheduled is not None:
            self._room.sequences.take_back(self._scheduled)
        self._scheduled, self.undecided = None, False
