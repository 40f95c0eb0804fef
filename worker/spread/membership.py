"""The place of a worker that decodes in a spread group: what its next decode step is.

decide    before each decode step: together, local, or not known yet (decode/lockstep.py)
launch    one together
took      how long the device waited for whom; ``aborted``: in vain
when_idle time steps, for the table by which steps are decided (trials.py)

A wait for the others never blocks: the worker's loop asks ``decide`` again in its next round.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from math import inf

from msgspec import structs

from decode.lockstep import LOCAL, WAIT, Lockstep, LockstepTimes
from decode.speculation import DraftPolicy, NoDrafts
from decode.spread_policy import SpreadPolicy
from decode.spread_record import Record, Stance
from engine.batch import ForwardBatch, SpreadPlan
from engine.cache.allocator import CacheAllocator
from engine.spread.interface import Spreading
from engine.spread.shapes import fits, most_rows
from engine.step import Step
from transport.wire.spread import SpreadCounts, TableSource
from worker.spread.group import Plan
from worker.spread.peers import read_all
from worker.spread.place import LOOK_IDLE_S, LOOK_S, GroupPlace, plan_of
from worker.spread.records import Records
from worker.spread.step_times import FixedTimes, StepTimes
from worker.spread.trial_group import TrialGroup
from worker.spread.trial_rows import TrialMemory

MOST_SURPLUS = 1.25
"""Times the sequences that a spread step can have: with more, local steps of all give more tokens a
second."""

log = logging.getLogger(__name__)


class Membership(GroupPlace[Lockstep]):
    """``engine`` launches spread steps; ``setting`` is ``auto`` or a number of tokens
    (decode/spread_policy.py), ``step_times`` what steps take, ``drafts`` what chooses the number of
    drafts. Times that were measured here count while all members have the same ones."""

    def __init__(
        self,
        engine: Spreading,
        instance: str,
        setting: str,
        records: Records,
        *,
        drafts: DraftPolicy | None = None,
        step_times: StepTimes | None = None,
        times: LockstepTimes | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(engine, instance, records)
        self._engine = engine
        self._drafts = drafts or NoDrafts()
        self._setting, self._instance = setting, instance
        self._step_times = step_times or FixedTimes()
        self._tables = 0, False  # digest of the measured table, and whether all members have it
        self._policy = self._new_policy()
        self._times = times
        self._clock = clock
        self._others_idle = self._is_first = self._others_unavailable = True
        self._waits_for: tuple[str, ...] = ()
        self._looked_at = 0.0
        self._saved_s = 0.0
        self._under_way: deque[float] = deque()
        """For each launched step: by how many seconds one fewer member would lengthen it."""

    @property
    def look_s(self) -> float:
        if self._rounds is None:
            return inf
        if self._step_times.under_way:
            return 0.0
        return LOOK_IDLE_S if self._others_idle else LOOK_S

    @property
    def in_step(self) -> bool:
        return self._rounds is not None and self._rounds.in_step

    @property
    def others_decode(self) -> bool:
        return self._rounds is not None and not self._others_idle

    @property
    def holds_prompts(self) -> bool:
        return self._rounds is not None and self._rounds.holds_prompts

    @property
    def is_awaited(self) -> bool:
        return self._rounds is not None and self._rounds.is_awaited(read_all(self._peers.decoding))

    @property
    def trial_memory(self) -> TrialMemory:
        return self._step_times.held

    def max_rows(self, wanted: int) -> int:
        """With a few sequences more than a spread step can have, these sit out in turn while all
        members take part: a local step of all takes longer."""
        most = most_rows(self._engine.shapes)
        if self._others_unavailable or not most < wanted <= MOST_SURPLUS * most:
            return wanted
        return most

    def decide(self, num_rows: int, num_drafts: int = 0, *, willing: bool) -> Plan:
        if self._rounds is None:
            return LOCAL
        if num_rows or not willing:
            self._step_times.pause()
        elif self._step_times.under_way:
            return LOCAL
        now, willing = self._clock(), willing and fits(self._engine.shapes, num_rows)
        records, lenders = read_all(self._peers.decoding), read_all(self._peers.lenders)
        self._others_idle = not any(record and record.rows for record in records)
        self._others_unavailable = any(
            not record or record.stance is Stance.UNAVAILABLE for record in records
        )
        self._compare_tables(records)
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
        is_first, self._is_first = self._is_first, False
        generation = self._rounds.record.generation
        plan = plan_of(generation, decision, self._engine.shapes, first=is_first)
        loads, num_sharing = self._rounds.loads, self._rounds.num_sharing
        self._drafts.set_spread_costs(self._policy.draft_costs(loads, num_sharing))
        self._saved_s = self._policy.saved_ms(loads, num_sharing, plan.num_drafts) / 1e3
        return plan

    def launch(self, batch: ForwardBatch, plan: SpreadPlan) -> Step:
        self._under_way.append(self._saved_s)
        return self._engine.launch(batch, plan)

    def record_step(self, seconds: float, *, spread: bool, waited_s: Sequence[float] = ()) -> None:
        self._tally.record_step(seconds, spread=spread)
        if spread:
            waits = zip(self._peers.members, waited_s, strict=False)
            waited = {peer: wait_s for peer, wait_s in waits if peer != self._instance}
            self._tally.shared(waited, self._under_way.popleft())

    def when_idle(self, memory: CacheAllocator, *, willing: bool, empty: bool) -> None:
        """A member that decodes takes part without sequences, too (``decide``)."""
        if self._rounds is not None and willing and empty:
            self._step_times.advance(memory)
        else:
            self._step_times.pause()

    def interrupt(self) -> None:
        self._step_times.pause()

    def before_prompts(self) -> None:
        self._is_first = True
        self._mark_unavailable()

    def behind_prompts(self) -> None:
        """The others have known since before the launch."""

    def aborted(self, late: tuple[int, ...]) -> None:
        self._tally.aborted()
        self._is_first = True
        self._under_way.clear()
        for rank in late:
            self._note_late(self._peers.members[rank], "did not take part in a spread step in time")
        if self._rounds is not None:
            self._rounds.aborted(self._clock())
            self._publish(self._rounds)

    def counts(self) -> SpreadCounts:
        return structs.replace(super().counts(), table=self._table_source)

    def leave(self) -> None:
        self._step_times.pause()
        super().leave()
        self._waits_for, self._is_first, self._others_unavailable = (), True, True
        self._drafts.set_spread_costs(None)

    def _begin(self, generation: int) -> Lockstep:
        self._tables = 0, False
        self._policy = self._new_policy()
        rounds = Lockstep(generation, self._policy, self._times)
        shapes = self._engine.shapes
        self._step_times.begin(
            TrialGroup(rounds, self._peers, self._own.write, shapes, self._clock)
        )
        return rounds

    def _new_policy(self) -> SpreadPolicy:
        node, (_, all_have_it) = self._step_times.node, self._tables
        table = node.table if node is not None and all_have_it else self._step_times.base
        return SpreadPolicy(self._setting, self._drafts.choices, self._engine.shapes, table)

    def _compare_tables(self, records: Sequence[Record | None]) -> None:
        """Decide by what was measured here once all members say that they have the same."""
        assert self._rounds is not None
        node = self._step_times.node
        digest = node.digest if node is not None else 0
        all_have_it = digest > 0 and all(not each or each.table == digest for each in records)
        if (digest, all_have_it) != self._tables:
            self._tables = digest, all_have_it
            self._policy = self._new_policy()
            self._rounds.use(self._policy, digest)
            log.info("spread: the times of steps are from: %s", self._table_source)

    @property
    def _table_source(self) -> TableSource:
        num_members = len(self._peers.members)
        if not num_members:
            return ""
        if self._step_times.given:
            return "file"
        if self._tables[1]:
            return "measured here"
        measured = self._step_times.base.source_of(num_members) == "measured"
        return "shipped" if measured else "estimated"

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
