"""What a member that decodes and a lender have in common: they join, publish, and leave.

join      the coordinator has formed a group: open the records and the memory of the others
publish   whatever is decided is written into this worker's record, which the others read
leave     another group follows, or the coordinator is gone
"""

from typing import Any, Generic, Protocol, TypeVar

from decode.spread_record import Record
from decode.spread_round import Together
from engine.batch import SpreadPlan
from engine.spread.shapes import Shapes, shape_for
from transport.wire.spread import SpreadCounts, SpreadExport, SpreadGroup, SpreadJoined
from worker.spread.peers import Exports, Joins, Peers, spread_export
from worker.spread.records import Records
from worker.spread.tally import Tally

LOOK_S, LOOK_IDLE_S = 0.005, 0.05
"""How long the worker may sleep before it looks whether the others begin to spread their steps; the
second while they have no sequences either."""


class SpreadEngine(Joins, Exports, Protocol):
    """The part of an engine that a group opens."""


class Rounds(Protocol):
    """Decides in which rounds of one generation this worker takes part. ``record`` is to be
    published whenever a method has returned."""

    record: Record

    def mark_unavailable(self) -> None: ...


AnyRounds = TypeVar("AnyRounds", bound=Rounds)


class GroupPlace(Generic[AnyRounds]):
    """``records.own`` is closed with this. ``_rounds`` is None while no group is joined."""

    def __init__(self, engine: SpreadEngine, instance: str, records: Records) -> None:
        self._own = records.own
        self._exports: Exports = engine
        self._peers = Peers(engine, instance, records.open_peer)
        self._tally = Tally()
        self._rounds: AnyRounds | None = None

    def count_with(self, other: "GroupPlace[Any]") -> None:
        """Count from now on in the same sums as another place of this worker."""
        self._tally = other._tally

    @property
    def export(self) -> SpreadExport:
        """What peers open."""
        return spread_export(self._own, self._exports)

    @property
    def joined(self) -> bool:
        return self._rounds is not None

    def join(self, group: SpreadGroup) -> SpreadJoined | None:
        self.leave()
        joined = self._peers.join(group)
        self._tally.joins(self._peers.members)
        if joined is not None and not joined.problem:
            self._rounds = self._begin(group.generation)
            self._publish(self._rounds)
        return joined

    def _mark_unavailable(self) -> None:
        if self._rounds is not None:
            self._rounds.mark_unavailable()
            self._publish(self._rounds)

    def leave(self) -> None:
        if self._rounds is not None:
            self._rounds = None
            self._own.write(Record(generation=0))
        self._peers.leave()

    def counts(self) -> SpreadCounts:
        return self._tally.counts(len(self._peers.members))

    def close(self) -> None:
        """Take part in nothing more; the process ends. What peers export stays mapped: where an
        error ended the loop, a step that uses it may be under way."""
        try:
            if self._rounds is not None:
                self._rounds = None
                self._own.write(Record(generation=0))
        finally:
            self._own.close()

    def _begin(self, generation: int) -> AnyRounds:
        """A group was joined."""
        raise NotImplementedError

    def _publish(self, rounds: AnyRounds) -> None:
        self._own.write(rounds.record)


def plan_of(generation: int, together: Together, shapes: Shapes, *, first: bool) -> SpreadPlan:
    """What a member of this generation launches for an agreed step; ``first`` as in SpreadPlan."""
    shape = shape_for(shapes, together.rows, together.drafts)
    return SpreadPlan(generation, together.round, shape.bucket, first, shape.num_drafts)
