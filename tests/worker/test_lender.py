"""A prefill worker that lends: to which steps it comes, and what it says of itself."""

from collections.abc import Iterator, Sequence
from secrets import token_hex

import pytest

from decode.lockstep import LOCAL
from decode.spread_record import Record, Stance
from engine.batch import SpreadPlan
from engine.cache.allocator import CacheAllocator
from engine.spread.interface import Lent, MemberUnreachable
from engine.spread.shapes import plain_shapes
from transport.wire.layout import PoolSize
from transport.wire.spread import (
    ExchangeExport,
    SpreadExport,
    SpreadGroup,
    SpreadJoined,
    SpreadMember,
)
from worker.spread.lender import NEXT_S, Lender
from worker.spread.place import LOOK_IDLE_S, LOOK_S
from worker.spread.records import OwnRecord, PeerRecord, Records


class Engine:
    """Takes note of what it is told. ``during`` is the record that peers see within a step.
    ``ends``: whether steps have ended when they are looked at; who reads one waits for its end."""

    shapes = plain_shapes((4, 16))
    export = ExchangeExport("shm", "exchange", 1)

    def __init__(self) -> None:
        self.lent: list[SpreadPlan] = []
        self.answer = Lent(took_part=True)
        self.ends, self.num_read = True, 0
        self.joined: list[tuple[int, int, int]] = []
        self.own: PeerRecord | None = None
        self.during: list[Record | None] = []
        self.unreachable: int | None = None

    def join(
        self, generation: int, rank: int, exports: Sequence[ExchangeExport], num_lenders: int
    ) -> None:
        if self.unreachable is not None:
            raise MemberUnreachable(self.unreachable, "no peer access")
        self.joined.append((generation, rank, num_lenders))

    def leave(self) -> None:
        self.joined.append((0, 0, 0))

    def lend(self, plan: SpreadPlan) -> "Step":
        assert self.own is not None
        self.during.append(self.own.read())
        self.lent.append(plan)
        return Step(self)


class Step:
    def __init__(self, engine: Engine) -> None:
        self._engine, self._answer = engine, engine.answer

    @property
    def has_ended(self) -> bool:
        return self._engine.ends

    def result(self) -> Lent:
        self._engine.num_read += 1
        return self._answer


class Desk:
    """A lender, and the records of two members that decode."""

    def __init__(self) -> None:
        self.now = 10.0
        self.engine = Engine()
        self.names = [f"d-{token_hex(4)}" for _ in range(2)]
        self.decoding = [OwnRecord(name) for name in self.names]
        name = f"p-{token_hex(4)}"
        own = OwnRecord(name)
        self.engine.own = PeerRecord(own.handle)
        self.lender = Lender(self.engine, name, Records(own), clock=lambda: self.now)
        exports = [SpreadExport(each.handle, Engine.export) for each in self.decoding]
        members = [*zip(self.names, exports, strict=True), (name, self.lender.export)]
        self.group = SpreadGroup(5, tuple(SpreadMember(*each) for each in members), 1)

    def commit(self, number: int, *rows: int, trial: int = 0) -> None:
        for own, each in zip(self.decoding, rows, strict=True):
            own.write(Record(5, number, Stance.COMMITTED, each, trial=trial))

    def lend(self, *, willing: bool) -> None:
        memory = CacheAllocator(PoolSize(1, 1))
        self.lender.when_idle(memory, willing=willing, empty=willing)

    @property
    def record(self) -> Record:
        assert self.engine.own is not None
        record = self.engine.own.read()
        assert record is not None
        return record


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    for own in [*desk.decoding, desk.lender]:
        own.close()


def test_it_comes_to_each_round_once_and_says_so_while_it_is_in_it(desk: Desk) -> None:
    assert desk.lender.join(desk.group) == SpreadJoined(5)
    assert desk.engine.joined == [(5, 2, 1)]
    desk.lend(willing=True)
    assert (desk.engine.lent, desk.record.stance) == ([], Stance.WILLING)
    desk.commit(3, 2, 9)
    for _ in range(2):
        desk.lend(willing=True)
    assert desk.engine.lent == [SpreadPlan(5, 3, 16, first=True)]
    assert [(r.stance, r.round) for r in desk.engine.during if r] == [(Stance.COMMITTED, 3)]
    assert desk.record.stance is Stance.WILLING
    assert desk.lender.counts().num_steps == 1
    assert desk.lender.decide(7, willing=True) == LOCAL


def test_the_next_step_is_launched_behind_the_one_under_way(desk: Desk) -> None:
    desk.lender.join(desk.group)
    desk.engine.ends = False
    desk.commit(3, 2, 9)
    for _ in range(2):
        desk.lend(willing=True)
    assert (desk.engine.num_read, desk.record.stance) == (0, Stance.COMMITTED)
    assert desk.lender.look_s == 0.0
    desk.commit(4, 2, 9)
    desk.lend(willing=True)
    plans = [(plan.round, plan.first) for plan in desk.engine.lent]
    assert plans == [(3, True), (4, False)]
    record = desk.record
    assert (desk.engine.num_read, record.stance, record.last_round) == (1, Stance.COMMITTED, 3)


def test_nothing_else_is_launched_while_steps_are_under_way(desk: Desk) -> None:
    desk.lender.join(desk.group)
    desk.engine.ends = False
    desk.commit(3, 2, 9)
    desk.lend(willing=True)
    assert desk.lender.decide(0, willing=True) == LOCAL
    assert desk.engine.num_read == 0
    assert desk.lender.decide(0, willing=False) == LOCAL
    assert (desk.engine.num_read, desk.record.stance) == (1, Stance.UNAVAILABLE)
    desk.commit(4, 2, 9)
    desk.lend(willing=True)
    desk.lender.leave()
    assert desk.engine.num_read == 2


def test_it_does_not_come_to_rounds_that_are_only_timed(desk: Desk) -> None:
    desk.lender.join(desk.group)
    desk.commit(3, 2, 9, trial=1)
    desk.lend(willing=True)
    assert not desk.engine.lent
    desk.commit(4, 2, 9)
    desk.lend(willing=True)
    assert [plan.round for plan in desk.engine.lent] == [4]


def test_with_prompts_it_comes_to_none(desk: Desk) -> None:
    desk.lender.join(desk.group)
    desk.commit(3, 2, 9)
    desk.lend(willing=False)
    desk.lender.behind_prompts()
    assert (desk.engine.lent, desk.record.stance) == ([], Stance.UNAVAILABLE)


def test_steps_that_it_came_too_late_for_or_that_aborted_are_not_counted(desk: Desk) -> None:
    desk.lender.join(desk.group)
    desk.engine.answer = Lent(took_part=False)
    desk.commit(3, 2, 9)
    desk.lend(willing=True)
    desk.engine.answer = Lent(True, True, (1,))
    desk.commit(4, 2, 9)
    desk.lend(willing=True)
    counts = desk.lender.counts()
    assert (counts.num_members, counts.num_steps, counts.num_aborted) == (3, 0, 1)
    assert counts.late == ((desk.names[1], 1),)


def test_it_sleeps_less_the_sooner_a_step_may_come(desk: Desk) -> None:
    assert desk.lender.look_s > 60.0
    desk.lender.join(desk.group)
    desk.lend(willing=True)
    assert desk.lender.look_s == LOOK_IDLE_S
    desk.decoding[0].write(Record(5, 3, Stance.WILLING, 12))
    desk.lend(willing=True)
    assert desk.lender.look_s == LOOK_S
    desk.commit(3, 12, 0)
    desk.lend(willing=True)
    assert desk.lender.look_s == 0.0
    desk.now += 2 * NEXT_S
    assert desk.lender.look_s == LOOK_S


def test_what_it_cannot_open_is_reported_with_the_peer(desk: Desk) -> None:
    desk.engine.unreachable = 0
    assert desk.lender.join(desk.group) == SpreadJoined(5, desk.names[0], "no peer access")
    desk.commit(3, 2, 9)
    desk.lend(willing=True)
    assert desk.engine.lent == []
    assert desk.lender.join(SpreadGroup(6)) is None
