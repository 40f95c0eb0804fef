"""A worker's place in a spread group: a generation's members, and what the next decode step is.

join      the coordinator has formed a group: open the records and the memory of the others
decide    before each decode step: together, local, or not known yet (decode/lockstep.py)
leave     another group follows, or the coordinator is gone

A wait for the others never blocks: the worker's loop asks ``decide`` again in its next round.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from typing import Literal

from decode.lockstep import LOCAL, WAIT, Lockstep, LockstepTimes
from decode.speculation import DraftPolicy, NoDrafts
from decode.spread_policy import SpreadPolicy
from decode.spread_record import Record
from decode.spread_table import StepTable, shipped
from engine.batch import ForwardBatch, SpreadPlan
from engine.spread.interface import Spreading
from engine.spread.shapes import fits, shape_for
from engine.step import Step
from transport.wire.spread import SpreadCounts, SpreadExport, SpreadGroup, SpreadJoined
from worker.spread.lender import LOOK_IDLE_S, LOOK_S, Lender
from worker.spread.peers import Peers, read_all, spread_export
from worker.spread.records import OwnRecord, PeerRecord
from worker.spread.tally import Tally

Plan = SpreadPlan | Literal["local", "wait"]

log = logging.getLogger(__name__)


class Alone:
    """Of a worker that takes part in no group."""

    look_s = inf
    export = None

    def decide(self, num_rows: int, num_drafts: int = 0, *, willing: bool) -> Plan:
        return LOCAL

    def launch(self, batch: ForwardBatch, plan: SpreadPlan) -> Step:
        raise AssertionError("a spread step without a group")

    def took(self, seconds: float, *, spread: bool, waited_s: Sequence[float] = ()) -> None:
        """It is not told."""

    def lend(self, *, willing: bool) -> None:
        """There are no others to lend to."""

    def stand_apart(self) -> None:
        """No other worker waits for this one."""

    def aborted(self, late: tuple[int, ...]) -> None:
        raise AssertionError("a spread step aborted that was not launched")

    def join(self, group: SpreadGroup) -> SpreadJoined | None:
        return None

    def leave(self) -> None:
        """There is nothing to leave."""

    def counts(self) -> SpreadCounts:
        return SpreadCounts()

    def close(self) -> None:
        """Nothing is open."""


class Membership:
    """``engine`` launches spread steps; ``setting`` is ``auto`` or a number of tokens
    (decode/spread_policy.py), ``table`` what steps take, ``drafts`` what chooses the number of
    drafts. ``own`` is this worker's record, closed with this; ``open_peer`` opens another one's by
    its handle."""

    def __init__(
        self,
        engine: Spreading,
        instance: str,
        setting: str,
        own: OwnRecord,
        *,
        drafts: DraftPolicy | None = None,
        table: StepTable | None = None,
        open_peer: Callable[[str], PeerRecord] = PeerRecord,
        times: LockstepTimes | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._drafts = drafts or NoDrafts()
        self._setting, self._table, self._instance = setting, table or shipped(), instance
        self._policy = self._new_policy()
        self._times = times
        self._clock = clock
        self._own = own
        self._peers = Peers(engine, instance, open_peer)
        self._lockstep: Lockstep | None = None
        self._generation = 0
        self._others_idle = self._is_first = True
        self._waits_for: tuple[str, ...] = ()
        self._looked_at = 0.0
        self._tally = Tally()
        self._saved_s = 0.0
        self._under_way: deque[float] = deque()
        """Of each launched step, what one member less would add to it."""

    @property
    def export(self) -> SpreadExport:
        """What peers open."""
        return spread_export(self._own, self._engine)

    @property
    def look_s(self) -> float:
        """How long the worker may sleep without a look at the others."""
        if self._lockstep is None:
            return inf
        return LOOK_IDLE_S if self._others_idle else LOOK_S

    def decide(self, num_rows: int, num_drafts: int = 0, *, willing: bool) -> Plan:
        """What the next decode step of so many sequences, with up to so many drafts each, is: one
        of the group, a local one, or to be asked again. ``willing``: this worker has nothing else
        to compute."""
        if self._lockstep is None:
            return LOCAL
        now, willing = self._clock(), willing and fits(self._engine.shapes, num_rows)
        records, lenders = read_all(self._peers.decoding), read_all(self._peers.lenders)
        self._others_idle = not any(record and record.rows for record in records)
        decision = self._lockstep.decide(
            num_rows, records, now, willing=willing, lenders=lenders, drafts=num_drafts,
            acceptance=5 * round(20 * self._drafts.rate),  # so that it changes rarely
        )  # fmt: skip
        self._own.write(self._lockstep.record)
        for place in self._lockstep.late:
            self._note_late(
                self._peers.decoding[place][0], "did not commit to a spread step in time"
            )
        if self._waits_for:
            self._tally.waited(self._waits_for, now - self._looked_at)
        self._waits_for, self._looked_at = (), now
        if decision == WAIT:
            self._waits_for = self._uncommitted(records)
            return WAIT
        if decision == LOCAL:
            self._is_first = True
            self._drafts.set_spread_costs(None)
            return LOCAL
        shape = shape_for(self._engine.shapes, decision.rows, decision.drafts)
        loads, num_sharing = self._lockstep.loads, self._lockstep.num_sharing
        self._drafts.set_spread_costs(self._policy.draft_costs(loads, num_sharing))
        self._saved_s = self._policy.saved_ms(loads, num_sharing, shape.num_drafts) / 1e3
        is_first, self._is_first = self._is_first, False
        number = decision.round
        return SpreadPlan(self._generation, number, shape.bucket, is_first, shape.num_drafts)

    def launch(self, batch: ForwardBatch, plan: SpreadPlan) -> Step:
        """Launch the step that ``decide`` has planned."""
        self._under_way.append(self._saved_s)
        return self._engine.launch(batch, plan)

    def took(self, seconds: float, *, spread: bool, waited_s: Sequence[float] = ()) -> None:
        """A decode step was computed, as launched here or alone, in so many seconds; within it the
        device waited so long for each member."""
        self._tally.took(seconds, spread=spread)
        if spread:
            waits = zip(self._peers.members, waited_s, strict=False)
            waited = {peer: wait_s for peer, wait_s in waits if peer != self._instance}
            self._tally.shared(waited, self._under_way.popleft())

    def lend(self, *, willing: bool) -> None:
        """A member that decodes takes part without sequences, too (``decide``)."""

    def stand_apart(self) -> None:
        """Prompts are launched before the next step; the others need not wait for this worker."""
        if self._lockstep is not None:
            self._lockstep.stand_apart()
            self._own.write(self._lockstep.record)

    def aborted(self, late: tuple[int, ...]) -> None:
        """Spread steps were taken back, in which those of these ranks were waited for in vain."""
        self._tally.aborted()
        self._is_first = True
        self._under_way.clear()
        for rank in late:
            self._note_late(self._peers.members[rank], "did not take part in a spread step in time")
        if self._lockstep is not None:
            self._lockstep.aborted(self._clock())
            self._own.write(self._lockstep.record)

    def join(self, group: SpreadGroup) -> SpreadJoined | None:
        """Leave the group before, and become a member of this one, while no step is under way.
        Returns the answer to the coordinator, None where this worker is in no group now."""
        self.leave()
        joined = self._peers.join(group)
        self._tally.joins(self._peers.members)
        if joined is not None and not joined.problem:
            self._generation = group.generation
            self._policy = self._new_policy()
            self._lockstep = Lockstep(group.generation, self._policy, self._times)
            self._own.write(self._lockstep.record)
        return joined

    def leave(self) -> None:
        """Take part in no more steps of the group, while none is under way."""
        if self._lockstep is not None:
            self._lockstep, self._generation = None, 0
            self._own.write(Record(generation=0))
        self._peers.leave()
        self._waits_for, self._is_first = (), True
        self._drafts.set_spread_costs(None)

    def counts(self) -> SpreadCounts:
        return self._tally.counts(len(self._peers.members))

    def close(self) -> None:
        try:
            self.leave()
        finally:
            self._own.close()

    def _new_policy(self) -> SpreadPolicy:
        return SpreadPolicy(self._setting, self._drafts.choices, self._engine.shapes, self._table)

    def _note_late(self, peer: str, what: str) -> None:
        times = self._tally.was_late(peer)
        log.warning("%s %s; local steps for a while (%d times)", peer, what, times)

    def _uncommitted(self, records: Sequence[Record | None]) -> tuple[str, ...]:
        """The members that have not committed to the round to which this one has."""
        assert self._lockstep is not None
        number = self._lockstep.record.round
        return tuple(
            peer
            for (peer, _), record in zip(self._peers.decoding, records, strict=True)
            if record is None or record.committed_to(number) is None
        )


Group = Alone | Membership | Lender
