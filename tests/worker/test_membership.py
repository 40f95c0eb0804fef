"""Members of a spread group in one process, with records in real shared memory."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from secrets import token_hex

import pytest
import torch

from decode.lockstep import LOCAL, WAIT, LockstepTimes
from decode.speculation import AutoDrafts, DraftPolicy
from engine.batch import ForwardBatch, SpreadPlan
from engine.spread.interface import MemberUnreachable
from engine.spread.shapes import draft_shapes, plain_shapes
from engine.step import Step
from engine.timer import Timer
from transport.wire.spread import ExchangeExport, SpreadGroup, SpreadJoined, SpreadMember
from worker.spread.group import Alone
from worker.spread.membership import Membership
from worker.spread.place import LOOK_IDLE_S, LOOK_S
from worker.spread.records import OwnRecord, Records

TIMES = LockstepTimes(wait_s=1.0, back_off_s=1.0)


class Spreader:
    """Takes note of what it is told."""

    shapes = plain_shapes((4, 16))

    def __init__(self, name: str) -> None:
        self.export = ExchangeExport("shm", f"exchange-{name}", 1)
        self.joined: list[tuple[int, int, int]] = []
        self.num_left = 0
        self.unreachable: int | None = None

    def join(
        self, generation: int, rank: int, exports: Sequence[ExchangeExport], num_lenders: int
    ) -> None:
        if self.unreachable is not None:
            raise MemberUnreachable(self.unreachable, "no peer access")
        assert exports[rank] == self.export
        self.joined.append((generation, rank, len(exports)))

    def leave(self) -> None:
        self.num_left += 1

    def launch(self, batch: ForwardBatch, plan: SpreadPlan) -> Step:
        return Step(len(batch.rows), (), Timer(torch.device("cpu")))


class Trio:
    def __init__(self, drafts: Sequence[DraftPolicy | None] = (None,) * 3) -> None:
        self.now = 0.0
        self.names = [f"d-{token_hex(4)}" for _ in range(3)]
        self.spreaders = [Spreader(name) for name in self.names]
        self.members = [
            Membership(
                spreader, name, "8", Records(OwnRecord(name)), drafts=each, times=TIMES,
                clock=lambda: self.now,
            )
            for spreader, name, each in zip(self.spreaders, self.names, drafts, strict=True)
        ]  # fmt: skip

    def group(self, generation: int = 5) -> SpreadGroup:
        pairs = zip(self.names, self.members, strict=True)
        return SpreadGroup(generation, tuple(SpreadMember(n, m.export) for n, m in pairs))

    def decide(self, *rows: int) -> list[object]:
        return [m.decide(n, willing=True) for m, n in zip(self.members, rows, strict=True)]


@pytest.fixture
def trio() -> Iterator[Trio]:
    trio = Trio()
    yield trio
    for member in trio.members:
        member.close()


def test_a_few_sequences_too_many_sit_out_while_all_members_take_part(trio: Trio) -> None:
    first, *others = trio.members
    assert first.max_rows(17) == 17, "in no group"
    for member in trio.members:
        member.join(trio.group())
    assert first.max_rows(17) == 17, "the others have said nothing yet"
    trio.decide(2, 6, 0)
    trio.decide(2, 6, 0)
    assert [first.max_rows(wanted) for wanted in (15, 16, 17, 20, 21)] == [15, 16, 16, 16, 21]
    others[0].decide(6, willing=False)
    first.decide(2, willing=True)
    assert first.max_rows(17) == 17, "one takes no part"


def test_members_launch_the_same_plan_and_say_what_they_did(trio: Trio) -> None:
    assert [m.join(trio.group()) for m in trio.members] == [SpreadJoined(5)] * 3
    assert [s.joined for s in trio.spreaders] == [[(5, rank, 3)] for rank in range(3)]
    assert trio.decide(2, 6, 0)[0] == LOCAL, "the others have said nothing yet"
    plans: list[object] = [None] * 3
    for _ in range(3):
        for place, rows in enumerate((2, 6, 0)):
            if not isinstance(plans[place], SpreadPlan):
                trio.now += 0.1
                plans[place] = trio.members[place].decide(rows, willing=True)
    assert plans == [plans[0]] * 3
    assert isinstance(plans[0], SpreadPlan)
    assert plans[0].first
    assert (plans[0].generation, plans[0].bucket) == (5, 16)
    for member in trio.members:
        member.launch(ForwardBatch(()), plans[0])
        member.record_step(0.25, spread=True, waited_s=(0.001, 0.002, 0.0))
        member.record_step(0.5, spread=False)
        counts = member.counts()
        assert (counts.num_members, counts.num_steps, counts.spread_ms) == (3, 1, 250)
        assert (counts.num_local, counts.local_ms) == (1, 500)
    assert sum(member.counts().wait_ms for member in trio.members) > 0
    first, second, third = trio.names
    assert dict(trio.members[0].counts().within_us) == {second: 2000, third: 0}, "not for itself"
    assert dict(trio.members[2].counts().within_us) == {first: 1000, second: 2000}


def test_drafts_are_chosen_by_what_they_cost_in_steps_of_the_kind_that_is_launched() -> None:
    chosen = [AutoDrafts(3, {4: (9.0, 9.0, 9.0)}) for _ in range(3)]
    trio = Trio(chosen)
    for spreader, member in zip(trio.spreaders, trio.members, strict=True):
        spreader.shapes = draft_shapes(3)
        member.join(trio.group())
    assert chosen[0].num_next(4) == 0, "in local steps none pays"
    plans: list[object] = [None] * 3
    for _ in range(4):
        for place, member in enumerate(trio.members):
            if not isinstance(plans[place], SpreadPlan):
                plans[place] = member.decide(4, willing=True)
    assert [drafts.num_next(4) for drafts in chosen] == [1] * 3, "of the first ones, with caution"
    trio.members[0].leave()
    assert chosen[0].num_next(4) == 0
    for member in trio.members:
        member.close()


def test_the_host_waits_for_those_that_have_not_committed(trio: Trio) -> None:
    for member in trio.members:
        member.join(trio.group())
    first, second, third = trio.members
    for member in (third, second):
        assert member.decide(8, willing=True) == LOCAL, "it sees no others willing"
    assert first.decide(8, willing=True) == WAIT
    trio.now += 0.25
    assert second.decide(8, willing=True) == WAIT
    assert first.decide(8, willing=True) == WAIT
    trio.now += 0.125
    assert third.decide(8, willing=True) != WAIT
    assert first.decide(8, willing=True) != WAIT
    counts = first.counts()
    assert counts.wait_ms == 375
    assert dict(counts.waits_ms) == {trio.names[1]: 250, trio.names[2]: 375}


def test_members_verify_as_many_drafts_as_their_largest_graphs_hold(trio: Trio) -> None:
    for member, spreader in zip(trio.members, trio.spreaders, strict=True):
        spreader.shapes = draft_shapes(3)
        assert member.export.max_drafts == 3
        member.join(trio.group())
    for rows, drafts, shape in (
        (9, (3, 0, 1), (12, 3)), (33, (0, 2, 0), (42, 2)), (50, (3, 1, 0), (64, 3)),
        (86, (3, 1, 0), (96, 1)), (129, (3, 3, 3), (192, 0)),
    ):  # fmt: skip
        plans: list[object] = [None] * 3
        for _ in range(4):
            for place, member in enumerate(trio.members):
                if not isinstance(plans[place], SpreadPlan):
                    own = rows if place == 1 else 4
                    plans[place] = member.decide(own, drafts[place], willing=True)
        plan = plans[0]
        assert isinstance(plan, SpreadPlan)
        assert (plan.bucket, plan.num_drafts) == shape
        others = [replace(each, first=plan.first) for each in plans[1:]]
        assert others == [plan] * 2


def test_rows_beyond_the_largest_graph_are_computed_locally(trio: Trio) -> None:
    for member in trio.members:
        member.join(trio.group())
    for _ in range(4):
        assert trio.decide(17, 8, 8) == [LOCAL] * 3


def test_a_member_is_named_that_does_not_come(trio: Trio, caplog: pytest.LogCaptureFixture) -> None:
    for member in trio.members:
        member.join(trio.group())
    first, second, third = trio.members
    for member in (third, second):
        assert member.decide(8, willing=True) == LOCAL, "it sees no others willing"
    for member in (first, second):
        assert member.decide(8, willing=True) == WAIT
    trio.now = 5.0
    with caplog.at_level(logging.WARNING):
        assert first.decide(8, willing=True) == LOCAL
    assert f"{trio.names[2]} did not commit to a spread step in time" in caplog.text
    assert first.counts().late == ((trio.names[2], 1),)


def test_an_aborted_step_names_the_ranks_that_were_waited_for(trio: Trio) -> None:
    for member in trio.members:
        member.join(trio.group())
    trio.members[0].aborted((2,))
    assert trio.members[0].counts().late == ((trio.names[2], 1),)
    assert trio.members[0].counts().num_aborted == 1


def test_what_cannot_be_opened_is_reported_with_the_peer(trio: Trio) -> None:
    trio.spreaders[0].unreachable = 1
    assert trio.members[0].join(trio.group()) == SpreadJoined(5, trio.names[1], "no peer access")
    assert trio.decide(8, 8, 8)[0] == LOCAL
    group = trio.group()
    trio.members[2].close()
    joined = trio.members[1].join(group)
    assert joined is not None
    assert joined.peer == trio.names[2]
    assert "no longer exists" in joined.problem
    trio.members[2] = Membership(
        trio.spreaders[2], trio.names[2], "8", Records(OwnRecord(trio.names[2])), times=TIMES
    )


def test_a_member_that_leaves_ends_the_others_rounds(trio: Trio) -> None:
    for member in trio.members:
        member.join(trio.group())
    for _ in range(2):
        trio.decide(8, 8, 8)
    assert trio.members[0].join(SpreadGroup(6)) is None
    assert trio.spreaders[0].num_left == 1
    assert trio.members[0].look_s > 60.0
    assert [m.decide(8, willing=True) for m in trio.members] == [LOCAL] * 3


def test_a_worker_that_an_error_ended_within_a_step_says_so_and_unmaps_nothing(trio: Trio) -> None:
    for member in trio.members:
        member.join(trio.group())
    trio.decide(8, 8, 8)
    trio.members[2].close()
    assert trio.spreaders[2].num_left == 0, "the step uses what it would unmap"
    assert [m.decide(8, willing=True) for m in trio.members[:2]] == [LOCAL] * 2
    trio.members[2] = Membership(
        trio.spreaders[2], trio.names[2], "8", Records(OwnRecord(trio.names[2])), times=TIMES
    )


def test_a_member_without_sequences_looks_more_often_while_others_have_some(trio: Trio) -> None:
    for member in trio.members:
        member.join(trio.group())
    trio.decide(0, 0, 0)
    assert trio.members[0].look_s == LOOK_IDLE_S
    trio.decide(0, 3, 0)
    trio.decide(0, 3, 0)
    assert trio.members[0].look_s == LOOK_S


def test_a_worker_alone_computes_all_its_steps_locally() -> None:
    alone = Alone()
    assert alone.decide(500, willing=True) == LOCAL
    assert alone.join(SpreadGroup(1)) is None
    assert alone.look_s > 60.0
