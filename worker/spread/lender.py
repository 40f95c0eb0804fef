"""A prefill worker's place in a spread group: while it has no prompts it lends its bandwidth.

join      the coordinator has formed a group: open the records and the memory of the others
lend      take part in the step that the decoding members launch, if there is one
leave     another group follows, or the coordinator is gone

A step is lent at a time, and the worker waits for its end: a prompt that comes meanwhile waits for
that step, and for no other one.
"""

import logging
import time
from collections.abc import Callable, Sequence
from math import inf
from typing import Literal

from decode.lending import LendingRounds
from decode.lockstep import LOCAL
from decode.spread_record import Record
from engine.batch import ForwardBatch, SpreadPlan
from engine.spread.interface import Lending
from engine.spread.shapes import shape_for
from engine.step import Step
from transport.wire.spread import SpreadCounts, SpreadExport, SpreadGroup, SpreadJoined
from worker.spread.peers import Peers, read_all, spread_export
from worker.spread.records import OwnRecord, PeerRecord
from worker.spread.tally import Tally

LOOK_S, LOOK_IDLE_S = 0.005, 0.05
"""How long the worker may sleep before it looks whether the others begin to spread their steps; the
second while they have no sequences either."""
NEXT_S = 0.02
"""So long after a step the worker does not sleep: the next one is to be launched as soon as this
one has ended."""

log = logging.getLogger(__name__)


class Lender:
    """``engine`` computes a lender's part of steps. ``own`` is this worker's record, closed with
    this; ``open_peer`` opens another one's by its handle."""

    def __init__(
        self,
        engine: Lending,
        instance: str,
        own: OwnRecord,
        *,
        open_peer: Callable[[str], PeerRecord] = PeerRecord,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine, self._own, self._clock = engine, own, clock
        self._peers = Peers(engine, instance, open_peer)
        self._rounds: LendingRounds | None = None
        self._others_idle = True
        self._lent_at = -inf
        self._tally = Tally()

    @property
    def export(self) -> SpreadExport:
        """What peers open."""
        return spread_export(self._own, self._engine)

    @property
    def look_s(self) -> float:
        """How long the worker may sleep without a look at the others."""
        if self._rounds is None:
            return inf
        if self._clock() - self._lent_at < NEXT_S:
            return 0.0
        return LOOK_IDLE_S if self._others_idle else LOOK_S

    def lend(self, *, willing: bool) -> None:
        """Take part in the members' next step, if all have committed to one. ``willing``: this
        worker has nothing else to compute."""
        if self._rounds is None:
            return
        records = read_all(self._peers.decoding)
        self._others_idle = not any(record and record.rows for record in records)
        together = self._rounds.decide(records, willing=willing)
        self._own.write(self._rounds.record)
        if together is None:
            return
        began = self._clock()
        shape = shape_for(self._engine.shapes, together.rows, together.drafts)
        generation, number = self._rounds.record.generation, together.round
        plan = SpreadPlan(generation, number, shape.bucket, True, shape.num_drafts)
        lent = self._engine.lend(plan)
        self._lent_at = self._clock()
        self._rounds.done()
        self._own.write(self._rounds.record)
        if lent.aborted:
            self._tally.aborted()
        elif lent.took_part:
            self._tally.took(self._lent_at - began, spread=True)
        for rank in lent.late:
            peer = self._peers.members[rank]
            times = self._tally.was_late(peer)
            log.warning("%s did not take part in a spread step in time (%d times)", peer, times)

    def decide(self, num_rows: int, num_drafts: int = 0, *, willing: bool) -> Literal["local"]:
        """A decode step of this worker's own is never shared out."""
        return LOCAL

    def launch(self, batch: ForwardBatch, plan: SpreadPlan) -> Step:
        raise AssertionError("a spread step of a lender's own")

    def took(self, seconds: float, *, spread: bool, waited_s: Sequence[float] = ()) -> None:
        """A decode step of its own; what it lends is counted where it ends."""

    def aborted(self, late: tuple[int, ...]) -> None:
        raise AssertionError("a spread step aborted that was not launched")

    def stand_apart(self) -> None:
        """Prompts are launched; the others do not count on this worker."""
        if self._rounds is not None:
            self._rounds.stand_apart()
            self._own.write(self._rounds.record)

    def join(self, group: SpreadGroup) -> SpreadJoined | None:
        """Leave the group before, and become a member of this one. Returns the answer to the
        coordinator, None where this worker is in no group now."""
        self.leave()
        joined = self._peers.join(group)
        self._tally.joins(self._peers.members)
        if joined is not None and not joined.problem:
            self._rounds = LendingRounds(group.generation)
            self._own.write(self._rounds.record)
        return joined

    def leave(self) -> None:
        """Take part in no more steps of the group."""
        if self._rounds is not None:
            self._rounds = None
            self._own.write(Record(generation=0))
        self._peers.leave()

    def counts(self) -> SpreadCounts:
        return self._tally.counts(len(self._peers.members))

    def close(self) -> None:
        try:
            self.leave()
        finally:
            self._own.close()
