"""The place of a worker that decodes in a spread group: what its next decode step is.

decide    before each decode step: together, local, or not known yet (decode/lockstep.py)
launch    one together
took      how long the device waited for whom; ``aborted``: in vain

A wait for the others never blocks: the worker's loop asks ``decide`` again in its next round.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from math import inf

from decode.lockstep import LOCAL, WAIT, Lockstep, LockstepTimes
from decode.speculation import DraftPolicy, NoDrafts
from decode.spread_policy import SpreadPolicy
from decode.spread_record import Record, Stance
from decode.spread_table import StepTable, shipped
from engine.batch import ForwardBatch, SpreadPlan
from engine.spread.interface import Spreading
from engine.spread.shapes import fits, most_rows, shape_for
from engine.step import Step
from worker.spread.group import Plan
from worker.spread.peers import read_all
from worker.spread.place import LOOK_IDLE_S, LOOK_S, GroupPlace
from worker.spread.records import OwnRecord, PeerRecord

MOST_SURPLUS = 1.25
"""Times the sequences that a spread step can have: with more, local steps of all give more tokens a
second."""

log = logging.getLogger(__name__)


class Membership(GroupPlace[Lockstep]):
    """``engine`` launches spread steps; ``setting`` is ``auto`` or a number of tokens
    (decode/spread_policy.py), ``table`` what steps take, ``drafts`` what chooses the number of
    drafts. ``own`` and ``open_peer`` as in GroupPlace."""

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
        super().__init__(engine, instance, own, open_peer)
        self._engine = engine
        self._drafts = drafts or NoDrafts()
        self._setting, self._table, self._instance = setting, table or shipped(), instance
        self._policy = self._new_policy()
        self._times = times
        self._clock = clock
        self._others_idle = self._is_first = self._others_apart = True
        self._waits_for: tuple[str, ...] = ()
        self._looked_at = 0.0
        self._saved_s = 0.0
        self._under_way: deque[float] = deque()
        """For each launched step: by how many seconds one fewer member would lengthen it."""

    @property
    def look_s(self) -> float:
        if self._rounds is None:
            return inf
        return LOOK_IDLE_S if self._others_idle else LOOK_S

    @property
    def holds_prompts(self) -> bool:
        return self._rounds is not None and self._rounds.holds_prompts

    def room(self, wanted: int) -> int:
        """With a few sequences more than a spread step can have, these sit out in turn while all
        members take part: a local step of all takes longer."""
        most = most_rows(self._engine.shapes)
        if self._others_apart or not most < wanted <= MOST_SURPLUS * most:
            return wanted
        return most

    def decide(self, num_rows: int, num_drafts: int = 0, *, willing: bool) -> Plan:
        if self._rounds is None:
            return LOCAL
        now, willing = self._clock(), willing and fits(self._engine.shapes, num_rows)
        records, lenders = read_all(self._peers.decoding), read_all(self._peers.lenders)
        self._others_idle = not any(record and record.rows for record in records)
        self._others_apart = any(not record or record.stance is Stance.APART for record in records)
        decision = self._rounds.decide(
            num_rows, records, now, willing=willing, lenders=lenders, drafts=num_drafts,
            acceptance=5 * round(20 * self._drafts.rate),  # so that it changes rarely
        )  # fmt: skip
        self._publish(self._rounds)
        for place in self._rounds.late:
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
        loads, num_sharing = self._rounds.loads, self._rounds.num_sharing
        self._drafts.set_spread_costs(self._policy.draft_costs(loads, num_sharing))
        self._saved_s = self._policy.saved_ms(loads, num_sharing, shape.num_drafts) / 1e3
        is_first, self._is_first = self._is_first, False
        generation, number = self._rounds.record.generation, decision.round
        return SpreadPlan(generation, number, shape.bucket, is_first, shape.num_drafts)

    def launch(self, batch: ForwardBatch, plan: SpreadPlan) -> Step:
        self._under_way.append(self._saved_s)
        return self._engine.launch(batch, plan)

    def took(self, seconds: float, *, spread: bool, waited_s: Sequence[float] = ()) -> None:
        self._tally.took(seconds, spread=spread)
        if spread:
            waits = zip(self._peers.members, waited_s, strict=False)
            waited = {peer: wait_s for peer, wait_s in waits if peer != self._instance}
            self._tally.shared(waited, self._under_way.popleft())

    def lend(self, *, willing: bool) -> None:
        """A member that decodes takes part without sequences, too (``decide``)."""

    def aborted(self, late: tuple[int, ...]) -> None:
        self._tally.aborted()
        self._is_first = True
        self._under_way.clear()
        for rank in late:
            self._note_late(self._peers.members[rank], "did not take part in a spread step in time")
        if self._rounds is not None:
            self._rounds.aborted(self._clock())
            self._publish(self._rounds)

    def leave(self) -> None:
        super().leave()
        self._waits_for, self._is_first, self._others_apart = (), True, True
        self._drafts.set_spread_costs(None)

    def _begin(self, generation: int) -> Lockstep:
        self._policy = self._new_policy()
        return Lockstep(generation, self._policy, self._times)

    def _new_policy(self) -> SpreadPolicy:
        return SpreadPolicy(self._setting, self._drafts.choices, self._engine.shapes, self._table)

    def _note_late(self, peer: str, what: str) -> None:
        times = self._tally.was_late(peer)
        log.warning("%s %s; local steps for a while (%d times)", peer, what, times)

    def _uncommitted(self, records: Sequence[Record | None]) -> tuple[str, ...]:
        """The members that have not committed to the round to which this one has."""
        assert self._rounds is not None
        number = self._rounds.record.round
        return tuple(
            peer
            for (peer, _), record in zip(self._peers.decoding, records, strict=True)
            if record is None or record.committed_to(number) is None
        )
