"""Members of an idle group time steps, with records in real shared memory and engines that take
as long as they say."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from secrets import token_hex

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from decode.lockstep import LOCAL, WAIT, LockstepTimes
from decode.speculation import DraftPolicy
from decode.spread_table import shipped
from decode.spread_trials import Point
from engine.batch import Binding, ForwardBatch, Sampled, SpreadPlan, StepResult
from engine.cache.allocator import CacheAllocator
from engine.spread.shapes import draft_shapes
from transport.wire.layout import CacheLayout, PoolSize
from transport.wire.spread import ExchangeExport, SpreadGroup, SpreadMember
from worker.spread.kept_tables import KeptTables
from worker.spread.membership import Membership
from worker.spread.records import OwnRecord, Records
from worker.spread.step_times import FixedTimes
from worker.spread.trial import Engines
from worker.spread.trials import StepTrials

TIMES = LockstepTimes(wait_s=1.0, back_off_s=1.0)
SIZE = PoolSize(num_pages=64, num_state_slots=12)
LAYOUT = CacheLayout("float32", 64, 1, 1, 1, 1, 1, 1, 1, 1, 1)
POINTS = Point(8), Point(4), Point(4, 3)
LOCAL_MS, SPREAD_MS = 10.0, 7.5


class Engine:
    """Takes so long for each step; both kinds of steps of one member. ``aborts``: how many of the
    next spread steps are taken back."""

    layout, num_ids = LAYOUT, 100
    shapes = draft_shapes(3)

    def __init__(self, name: str) -> None:
        self.export = ExchangeExport("shm", f"exchange-{name}", 1)
        self.now = 0.0
        self.plans: list[SpreadPlan] = []
        self.num_local = self.num_prompts = self.num_launched = self.unread = self.aborts = 0

    def join(
        self, generation: int, rank: int, exports: Sequence[ExchangeExport], num_lenders: int
    ) -> None:
        assert not self.unread

    def leave(self) -> None:
        assert not self.unread

    def bind(self, binding: Binding) -> None:
        assert binding.output_ids == ()

    def launch(self, batch: ForwardBatch, plan: SpreadPlan | None = None) -> "Launched":
        self.unread += 1
        self.num_launched += 1
        if plan is not None:
            assert len(batch.rows) <= plan.bucket
            assert plan.first is (self.unread == 1)
            self.plans.append(plan)
            return Launched(self, batch, SPREAD_MS)
        if batch.rows[0].token_ids is not None:
            self.num_prompts += len(batch.rows)
            return Launched(self, batch, 20.0)
        self.num_local += 1
        return Launched(self, batch, LOCAL_MS)


class Launched:
    def __init__(self, engine: Engine, batch: ForwardBatch, ms: float) -> None:
        self._engine, self._batch, self._ms = engine, batch, ms

    def result(self) -> StepResult:
        engine = self._engine
        engine.unread -= 1
        engine.now += self._ms / 1e3
        if engine.aborts and self._ms == SPREAD_MS:
            engine.aborts -= 1
            return StepResult((), aborted=True, late=(0,))
        return StepResult(tuple((Sampled(5),) for _ in self._batch.rows))


class Member:
    """A membership, and what a worker's loop does with it while it has nothing to do."""

    def __init__(self, folder: Path, setting: str = "8", drafts: DraftPolicy | None = None) -> None:
        self.name = f"d-{token_hex(4)}"
        self.engine = Engine(self.name)
        self.memory = CacheAllocator(SIZE)
        self.times = StepTrials(
            Engines(self.engine, self.engine), KeptTables(folder, "a GPU"), self.name,
            sizes=lambda shapes: POINTS, clock=self._clock,
        )  # fmt: skip
        self.place = Membership(
            self.engine, self.name, setting, Records(OwnRecord(self.name)), drafts=drafts,
            step_times=self.times, times=TIMES, clock=self._clock,
        )  # fmt: skip
        self.lives = True
        self._num_idle = 0

    def _clock(self) -> float:
        self.engine.now += 1e-6
        return self.engine.now

    def turn(self) -> None:
        """One round of an idle worker; rounds without a step take time as well."""
        if not self.lives:
            return
        known = self.engine.num_launched
        if self.place.decide(0, willing=True) != WAIT:
            self.place.when_idle(self.memory, willing=True, empty=True)
        self._num_idle = 0 if self.engine.num_launched > known else self._num_idle + 1
        if self._num_idle > 5:
            self.engine.now += 0.02

    @property
    def is_free(self) -> bool:
        free = self.memory.free_pages, self.memory.free_state_slots
        return free == (SIZE.num_pages, SIZE.num_state_slots) and not self.memory.check()


class Pair:
    def __init__(self, *folders: Path, setting: str = "8") -> None:
        self.members = [Member(folder, setting) for folder in folders]
        self.join()

    def join(self, generation: int = 5) -> None:
        told = tuple(SpreadMember(m.name, m.place.export) for m in self.members)
        for member in self.members:
            joined = member.place.join(SpreadGroup(generation, told))
            assert joined is not None
            assert not joined.problem

    def turns(self) -> None:
        """Idle rounds, until no member has steps to time."""
        for _ in range(2_000):
            for member in self.members:
                member.turn()
            if not any(m.times._points for m in self.members if m.lives):
                return
        raise AssertionError("the members never ended their trials")

    def turn_until_timed(self, num_plans: int) -> None:
        while len(self.members[0].engine.plans) < num_plans:
            for member in self.members:
                member.turn()

    def sources(self) -> list[str]:
        """Of all members, when each has seen the others' records."""
        for _ in range(2):
            for member in self.members:
                member.turn()
        return [member.place.counts().table for member in self.members]

    def close(self) -> None:
        for member in self.members:
            member.place.close()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(tmp_path, tmp_path)
    yield pair
    pair.close()


def test_an_idle_group_times_its_steps_and_all_members_decide_by_them(pair: Pair) -> None:
    assert pair.sources() == ["shipped", "shipped"]
    pair.turns()
    assert pair.sources() == ["measured here", "measured here"]
    first, second = (member.times.node for member in pair.members)
    assert first is not None
    assert second is not None
    assert first.digest == second.digest
    for rows, drafts in POINTS:
        assert first.table.local_ms(rows, drafts) == pytest.approx(LOCAL_MS, rel=0.01)
        assert first.table.even_ms(2, rows, drafts) == pytest.approx(SPREAD_MS, rel=0.01)
    assert pair.members[0].engine.plans == pair.members[1].engine.plans
    assert {(p.bucket, p.num_drafts) for p in pair.members[0].engine.plans} == {(8, 0), (4, 3)}


def test_what_is_only_timed_is_counted_nowhere_and_leaves_nothing(pair: Pair) -> None:
    pair.turns()
    for member in pair.members:
        counts = member.place.counts()
        assert (counts.num_steps, counts.num_local, counts.wait_ms) == (0, 0, 0)
        assert (counts.late, counts.num_aborted, counts.within_us) == ((), 0, ())
        assert member.is_free
        assert member.engine.now < 3.0


def test_a_later_group_finds_what_was_measured(pair: Pair, tmp_path: Path) -> None:
    pair.turns()
    known = [(m.engine.num_local, len(m.engine.plans)) for m in pair.members]
    pair.join(6)
    assert pair.sources() == ["measured here", "measured here"]
    assert [(m.engine.num_local, len(m.engine.plans)) for m in pair.members] == known
    later = Pair(tmp_path, tmp_path)
    assert later.sources() == ["measured here", "measured here"]
    assert later.members[0].engine.num_prompts == 0
    later.close()


def test_members_with_different_tables_decide_by_the_shipped_one(tmp_path: Path) -> None:
    pair = Pair(tmp_path / "one", tmp_path / "other")
    pair.turns()
    one, other = (member.times.node for member in pair.members)
    assert one is not None
    assert other is not None
    assert one.digest != other.digest
    assert pair.sources() == ["shipped", "shipped"]
    pair.close()


def test_a_message_gives_the_memory_back_at_once_and_later_the_trials_go_on(pair: Pair) -> None:
    first, second = pair.members
    pair.turn_until_timed(9)
    assert not first.is_free
    held, free = first.place.trial_memory, (first.memory.free_pages, first.memory.free_state_slots)
    assert held == (8 * 2, 8)
    assert (held.num_pages + free[0], held.num_state_slots + free[1]) == (64, 12), "as it is told"
    assert first.place.look_s == 0.0
    first.place.interrupt()
    assert first.is_free
    assert first.engine.unread == 0
    assert first.place.trial_memory == (0, 0)
    assert first.place.look_s > 0.0
    pair.turns()
    assert pair.sources() == ["measured here", "measured here"]
    assert second.is_free


def test_sequences_that_come_in_the_middle_are_computed_together_next(pair: Pair) -> None:
    first, second = pair.members
    pair.turn_until_timed(8)
    num_timed = len(first.engine.plans)
    first.place.interrupt()
    plans: list[object] = []
    for _ in range(6):
        plans.append(first.place.decide(9, willing=True))
        if isinstance(plans[-1], SpreadPlan):
            break
        second.turn()
    assert second.is_free, "it does not go on alone"
    assert plans[0] == LOCAL, "the other one is at a trial"
    assert isinstance(plans[-1], SpreadPlan)
    assert (plans[-1].bucket, plans[-1].first) == (16, True)
    assert len(first.engine.plans) == num_timed
    assert [member.place.counts().late for member in pair.members] == [(), ()]


def test_a_member_that_dies_makes_the_others_give_up(pair: Pair) -> None:
    first, second = pair.members
    pair.turn_until_timed(4)
    second.lives = False
    for _ in range(200):
        first.turn()
    assert first.is_free
    assert first.times.node is None
    assert first.place.counts().late == ()


def test_a_step_that_is_taken_back_is_not_timed_and_costs_no_time_apart(pair: Pair) -> None:
    for member in pair.members:
        member.engine.aborts = 2
    pair.turns()
    assert pair.sources() == ["measured here", "measured here"]
    assert [member.place.counts().num_aborted for member in pair.members] == [0, 0]
    assert all(member.is_free for member in pair.members)


def test_with_less_memory_the_smaller_steps_are_timed(pair: Pair) -> None:
    held = [member.memory.reserve(1) for member in pair.members for _ in range(6)]
    for member in pair.members:
        member.times._points = (*POINTS, Point(4))
    pair.turns()
    assert {plan.bucket for member in pair.members for plan in member.engine.plans} == {4, 8}
    for member in pair.members:
        assert {step.rows for step in member.times._timed} == {4}
    assert len(held) == 12


def test_a_file_of_the_users_stays_and_nothing_is_timed(tmp_path: Path) -> None:
    name = f"d-{token_hex(4)}"
    engine = Engine(name)
    for times, source in ((FixedTimes(shipped()), "file"), (FixedTimes(), "shipped")):
        place = Membership(engine, name, "auto", Records(OwnRecord(name)), step_times=times)
        place.join(SpreadGroup(5, (SpreadMember(name, place.export),)))
        place.when_idle(CacheAllocator(SIZE), willing=True, empty=True)
        assert engine.num_prompts == 0
        place._peers.members = (name, "another")
        assert place.counts().table == source
        place.close()


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_whatever_comes_between_nothing_leaks_and_all_rounds_agree(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("tables")
    pair = Pair(folder, folder)
    for _ in range(data.draw(st.integers(1, 30))):
        place = data.draw(st.integers(0, 1))
        member, what = (
            pair.members[place],
            data.draw(st.sampled_from(["turn", "work", "message", "abort"])),
        )
        if what == "work":
            member.place.interrupt()
            assert member.is_free
            plan = member.place.decide(3, willing=data.draw(st.booleans()))
            assert plan in (LOCAL, WAIT), "too few rows for the policy, and the other one is idle"
        elif what == "message":
            member.place.interrupt()
            assert member.is_free
        elif what == "abort":
            member.engine.aborts = 2
        else:
            for _ in range(data.draw(st.integers(1, 30))):
                pair.members[place].turn()
                pair.members[1 - place].turn()
    pair.turns()
    assert all(member.is_free for member in pair.members)
    by_round = [{p.round: (p.bucket, p.num_drafts) for p in m.engine.plans} for m in pair.members]
    for number in by_round[0].keys() & by_round[1].keys():
        assert by_round[0][number] == by_round[1][number]
    assert len(set(pair.sources())) == 1
    pair.close()
