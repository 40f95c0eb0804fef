"""Spread steps of engines without a model: the exchange memory of a node, and steps that end only
when all members have launched them.

A device waits in a step until the others have launched it too, or for so long that it aborts it.
Then the step and the next one are void for all members, whatever they have launched by then. A
spread step stores the states before its tokens. A void one does that too, and writes garbage behind
the ends of its sequences, but none of its tokens becomes pending.

A lender offers itself for a step. The first member's device decides which offers have come in time
when it begins the step. All members' devices wait to be told, and from then on the step ends only
when these lenders have computed their share.
"""

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from decode.spread_record import Record
from engine.batch import ForwardBatch, SpreadPlan, StepResult
from engine.spread.interface import Lent, MemberUnreachable
from engine.spread.shapes import SpreadShape
from tests.simulation.fake_engine import LAYOUT, FakeEngine, FakeStep
from transport.wire.errors import PeerGone
from transport.wire.spread import ExchangeExport


@dataclass
class Exchange:
    """What the members of all generations have launched: by (generation, round) the shape, and who
    has launched it. ``wait`` lets a host stand still until a step is ready, or returns."""

    rng: random.Random
    wait: Callable[["SpreadStep | LentStep"], None]
    shapes: dict[tuple[int, int], SpreadShape] = field(default_factory=dict)
    launched: dict[tuple[int, int], set[str]] = field(default_factory=dict)
    aborted: dict[int, int] = field(default_factory=dict)
    unreachable: set[frozenset[str]] = field(default_factory=set)
    offered: dict[tuple[int, int], set[str]] = field(default_factory=dict)
    taking_part: dict[tuple[int, int], set[str]] = field(default_factory=dict)
    lent: dict[tuple[int, int], set[str]] = field(default_factory=dict)
    num_computed: int = 0
    num_void: int = 0
    num_lent: int = 0

    def launch(self, name: str, plan: SpreadPlan, num_rows: int) -> None:
        key = plan.generation, plan.round
        shape = SpreadShape(plan.bucket, plan.num_drafts)
        assert self.shapes.setdefault(key, shape) == shape, "two graphs for one round"
        assert num_rows <= plan.bucket
        names = self.launched.setdefault(key, set())
        assert name not in names, "launched twice"
        names.add(name)

    def decide_lenders(self, plan: SpreadPlan) -> None:
        key = plan.generation, plan.round
        if key not in self.taking_part and not self.is_void(plan):
            self.taking_part[key] = set(self.offered.get(key, ()))

    def late_lenders(self, plan: SpreadPlan) -> set[str]:
        """Those that take part and have not computed their share."""
        key = plan.generation, plan.round
        return self.taking_part.get(key, set()) - self.lent.get(key, set())

    def assert_no_lender_computes(self, before: SpreadPlan) -> None:
        """What it stores for an earlier step would come late."""
        for (generation, number), names in self.taking_part.items():
            if generation == before.generation and number < before.round:
                assert names <= self.lent.get((generation, number), set())

    def is_void(self, plan: SpreadPlan) -> bool:
        return plan.round <= self.aborted.get(plan.generation, -1) + 1

    def abort(self, plan: SpreadPlan) -> None:
        known = self.aborted.get(plan.generation, -1)
        self.aborted[plan.generation] = max(known, plan.round)


class FakeSpreading:
    """``Spreading`` of one fake engine, whose ``name`` is its worker's."""

    shapes = tuple(
        SpreadShape(bucket, num_drafts)
        for num_drafts in range(4)
        for bucket in (1, 2, 4, 8, 16, 64, 512)
        if not num_drafts or bucket * (1 + num_drafts) <= 12  # with more rows fewer drafts
    )

    def __init__(self, engine: FakeEngine, name: str, exchange: Exchange) -> None:
        self.engine, self.exchange = engine, exchange
        self.export = ExchangeExport("shm", name, 1)
        self.members: tuple[str, ...] = ()
        self.num_lenders = self.generation = self.last_round = 0

    def join(
        self, generation: int, rank: int, exports: Sequence[ExchangeExport], num_lenders: int
    ) -> None:
        assert not self.engine.unread_spread
        assert not self.members
        assert exports[rank] == self.export
        for other, export in enumerate(exports):
            pair = frozenset((export.handle, self.export.handle))
            if pair in self.exchange.unreachable:
                raise MemberUnreachable(other, f"{export.handle} is not reached")
        self.members = tuple(export.handle for export in exports)
        self.generation, self.num_lenders = generation, num_lenders

    def leave(self) -> None:
        assert not self.engine.unread_spread
        self.members = ()

    def launch(self, batch: ForwardBatch, plan: SpreadPlan) -> "SpreadStep":
        assert plan.generation == self.generation
        assert not (plan.first and self.engine.unread_spread)
        if plan.first:
            self.exchange.assert_no_lender_computes(plan)
        else:
            assert plan.round == self.last_round + 1, "a gap behind a step that may abort"
        self.last_round = plan.round
        assert self.members
        assert all(row.token_ids is None for row in batch.rows)
        if batch.rows:
            self.engine.checks.check(batch)
        self.exchange.launch(self.export.handle, plan, len(batch.rows))
        step = SpreadStep(self.engine, batch, spreading=self, plan=plan)
        self.engine.queue.append(step)
        self.engine.unread_spread += 1
        return step


@dataclass(eq=False, kw_only=True)
class SpreadStep(FakeStep):
    spreading: FakeSpreading
    plan: SpreadPlan
    void: bool = False
    num_stored: ClassVar[int] = 0
    late: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self.members = self.spreading.members
        self.num_decoding = len(self.members) - self.spreading.num_lenders

    def most_drafts(self, row) -> int:
        return min(row.num_drafts, self.plan.num_drafts)

    @property
    def missing(self) -> list[int]:
        """Ranks of those that have not launched the step, and of lenders that it waits for."""
        exchange, plan = self.spreading.exchange, self.plan
        late = exchange.late_lenders(plan)
        late |= set(self.members[: self.num_decoding])
        late -= exchange.launched[plan.generation, plan.round]
        return [rank for rank, name in enumerate(self.members) if name in late]

    @property
    def may_run(self) -> bool:
        """Whether the step at the device's head goes on."""
        exchange, plan = self.spreading.exchange, self.plan
        if self.spreading.export.handle == self.members[0]:
            exchange.decide_lenders(plan)
        is_told = (plan.generation, plan.round) in exchange.taking_part
        return (is_told and not self.missing) or exchange.is_void(plan)

    def give_up(self) -> None:
        """The device has waited for long enough."""
        self.late = tuple(self.missing)
        self.spreading.exchange.abort(self.plan)

    def execute(self) -> None:
        exchange = self.spreading.exchange
        if exchange.rng.random() < 0.01:
            exchange.abort(self.plan)  # a member died within it
        if not exchange.is_void(self.plan):
            exchange.num_computed += 1
            super().execute()
            return
        self.executed = self.void = True
        exchange.num_void += 1
        for row in self.batch.rows:
            known = self.engine.slots[row.state_slot].length
            room = len(row.block_table) * LAYOUT.page_size
            begin = min(row.start if known is None else known, room - 1)
            for position in range(begin, min(begin + 1 + self.most_drafts(row), room)):
                self._write(row, position, 77)
            self.engine.apply_pending(row.state_slot)

    def result(self) -> StepResult:
        while not self.executed:
            if self.engine.queue[0].may_run:
                self.engine.run_one()
            else:
                blocked = self.engine.queue[0]
                assert isinstance(blocked, SpreadStep)
                self.spreading.exchange.wait(blocked)
        self.engine.unread_spread -= 1
        if self.void:
            return StepResult((), aborted=True, late=self.late)
        return super().result()


class FakeLending(FakeSpreading):
    """``Lending`` of one fake engine."""

    def __init__(self, engine: FakeEngine, name: str, exchange: Exchange) -> None:
        super().__init__(engine, name, exchange)
        self.under_way: deque[LentStep] = deque()

    def launch(self, batch: ForwardBatch, plan: SpreadPlan) -> "SpreadStep":
        raise AssertionError("it has no rows")

    def lend(self, plan: SpreadPlan) -> "LentStep":
        exchange, key = self.exchange, (plan.generation, plan.round)
        assert plan.generation == self.generation
        assert plan.first == (not self.under_way)
        assert len(self.engine.queue) <= len(self.under_way), "a batch of prompts is under way"
        shape = SpreadShape(plan.bucket, plan.num_drafts)
        assert exchange.shapes.setdefault(key, shape) == shape
        exchange.offered.setdefault(key, set()).add(self.export.handle)
        step = LentStep(self.engine, ForwardBatch(()), spreading=self, plan=plan)
        self.engine.queue.append(step)
        self.under_way.append(step)
        return step


@dataclass(eq=False, kw_only=True)
class LentStep(FakeStep):
    spreading: FakeLending
    plan: SpreadPlan
    outcome: Lent = field(default_factory=lambda: Lent(took_part=False))
    gave_up: bool = False

    @property
    def takes_part(self) -> bool:
        taking_part = self.spreading.exchange.taking_part
        names = taking_part.get((self.plan.generation, self.plan.round), set())
        return self.spreading.export.handle in names

    @property
    def may_run(self) -> bool:
        exchange, plan = self.spreading.exchange, self.plan
        if exchange.is_void(plan) or self.gave_up:
            return True
        if self.takes_part:
            num_decoding = len(self.spreading.members) - self.spreading.num_lenders
            names = exchange.launched.get((plan.generation, plan.round), set())
            return names >= set(self.spreading.members[:num_decoding])
        later = [number for g, number in exchange.taking_part if g == plan.generation]
        return max(later, default=-1) >= plan.round

    @property
    def has_ended(self) -> bool:
        """The host looks again and again, so that the device goes on and waits meanwhile."""
        if self.may_run and not self.executed:
            self.engine.run_one()
        elif not self.executed and self.spreading.exchange.rng.random() < 0.003:
            self.give_up()
        return self.executed

    def result(self) -> Lent:
        assert self.spreading.under_way.popleft() is self
        while not self.executed:
            if self.may_run:
                self.engine.run_one()
            else:
                self.spreading.exchange.wait(self)
        return self.outcome

    def give_up(self) -> None:
        if self.takes_part:
            self.spreading.exchange.abort(self.plan)
        else:
            self.gave_up = True
            key = self.plan.generation, self.plan.round
            self.spreading.exchange.offered[key].discard(self.spreading.export.handle)

    def execute(self) -> None:
        exchange, self.executed = self.spreading.exchange, True
        aborted = exchange.is_void(self.plan)
        if self.takes_part:
            key = self.plan.generation, self.plan.round
            exchange.lent.setdefault(key, set()).add(self.spreading.export.handle)
            exchange.num_lent += not aborted
        self.outcome = Lent(self.takes_part, aborted)


class FakeRecord:
    """An ``OwnRecord``, and as such read by peers."""

    def __init__(self, name: str, records: "dict[str, Record]") -> None:
        self.handle, self._records = name, records
        records[name] = Record(generation=0)

    def write(self, record: Record) -> None:
        self._records[self.handle] = record

    def close(self) -> None:
        del self._records[self.handle]


@dataclass
class FakePeerRecord:
    """It stays readable when its owner is dead. ``torn``: the owner died while it wrote."""

    name: str
    records: dict[str, Record]
    torn: set[str]

    def __post_init__(self) -> None:
        if self.name not in self.records:
            raise PeerGone(self.name)

    def read(self) -> Record | None:
        return None if self.name in self.torn else self.records[self.name]

    def close(self) -> None:
        """Nothing is mapped."""
