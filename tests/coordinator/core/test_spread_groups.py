"""Which workers the coordinator puts together, and when it tells them."""

import logging

import pytest

from coordinator.core.settings import BreakerSettings
from coordinator.core.spread.groups import SpreadGroups
from coordinator.core.spread.members import FIRST_OUT_S, MAX_LATE, MOST_OUT_S, WITHIN_S, SlowMembers
from coordinator.core.workers.registry import Registry
from coordinator.core.workers.worker import Worker
from tests.coordinator.site import EXPORT
from transport.wire.messages import Hello, Role
from transport.wire.spread import (
    MAX_MEMBERS,
    ExchangeExport,
    SpreadCounts,
    SpreadExport,
    SpreadGroup,
    SpreadJoined,
)


class Desk:
    def __init__(self) -> None:
        self.now = 0.0
        self.registry = Registry(BreakerSettings())
        self.sent: list[tuple[str, SpreadGroup]] = []
        self.all_sent: list[SpreadGroup] = []
        self.groups = SpreadGroups(
            self.registry, lambda *sent: self.sent.append(sent), lambda: self.now, 100
        )

    def add(
        self, name: str, role: Role = "decode", *, spreads: bool = True, gpu: str = "",
        max_drafts: int = 0, other_roles: tuple[Role, ...] = (),
    ) -> Worker:  # fmt: skip
        export = SpreadExport(f"record-{name}", ExchangeExport("shm", name, 1), max_drafts)
        spread = export if spreads else None
        hello = Hello(name, role, "m", "cpu", 1, 128, 8, EXPORT, gpu=gpu, spread=spread,
            other_roles=other_roles,
        )  # fmt: skip
        worker = self.registry.add(hello, self.now)
        self.groups.update()
        return worker

    def told(self) -> dict[str, tuple[int, tuple[str, ...]]]:
        """The last group that each worker was told of since the last time."""
        sent, self.sent = self.sent, []
        self.all_sent += [message for _, message in sent]
        return {to: (m.generation, tuple(x.instance for x in m.members)) for to, m in sent}


@pytest.fixture
def desk() -> Desk:
    return Desk()


def trio(desk: Desk) -> list[Worker]:
    workers = [desk.add(name) for name in ("a", "b", "c")]
    desk.told()
    return workers


def test_each_joining_worker_makes_a_new_generation(desk: Desk) -> None:
    desk.add("a")
    assert desk.told() == {}, "one worker is no group"
    desk.add("b")
    assert desk.told() == dict.fromkeys(("a", "b"), (100, ("a", "b")))
    desk.add("c")
    assert desk.told() == dict.fromkeys(("a", "b", "c"), (101, ("a", "b", "c")))
    desk.groups.update()
    assert desk.told() == {}


def test_workers_that_cannot_or_may_not_are_left_out(desk: Desk) -> None:
    desk.add("a")
    desk.add("p", "prefill", spreads=False)
    desk.add("x", spreads=False)
    desk.add("b")
    assert set(desk.told()) == {"a", "b"}


def test_workers_with_other_numbers_of_drafts_are_not_put_together(desk: Desk) -> None:
    for name, max_drafts in (("a", 3), ("b", 2), ("c", 3), ("d", 2)):
        desk.add(name, max_drafts=max_drafts)
    desk.add("p", "prefill", max_drafts=2)
    told = {name: members for name, (_, members) in desk.told().items()}
    assert told == {
        "a": ("a", "c"), "c": ("a", "c"),
        "b": ("b", "d", "p"), "d": ("b", "d", "p"), "p": ("b", "d", "p"),
    }  # fmt: skip


def test_workers_that_share_a_gpu_are_not_put_together(desk: Desk) -> None:
    for name, gpu in (("a", "GPU-1"), ("b", "GPU-1"), ("c", "GPU-2"), ("d", "GPU-2")):
        desk.add(name, gpu=gpu)
    told = desk.told()
    assert told["a"] == told["c"]
    assert told["a"][1] == ("a", "c")
    assert told["b"][1] == told["d"][1] == ("b", "d")


def test_prefill_workers_lend_behind_those_that_decode(desk: Desk) -> None:
    desk.add("p1", "prefill")
    desk.add("p2", "prefill")
    assert desk.told() == {}, "lenders alone are no group"
    desk.add("a")
    assert {members for _, members in desk.told().values()} == {("a", "p1", "p2")}
    desk.add("b")
    assert {members for _, members in desk.told().values()} == {("a", "b", "p1", "p2")}
    assert {message.num_lenders for message in desk.all_sent if "b" in str(message)} == {2}
    for number in range(6):
        desk.add(f"d{number}")
    told = desk.told()
    assert told["a"][1] == ("a", "b", "d0", "d1", "d2", "d3", "d4", "d5")
    assert told["p1"][1] == (), "there is no room for it"


def test_workers_of_any_role_lend_as_long_as_they_compute_prompts(desk: Desk) -> None:
    p = desk.add("p", "prefill", other_roles=("decode",))
    a = desk.add("a", other_roles=("prefill",))
    desk.add("b", other_roles=("prefill",))
    assert desk.told() == dict.fromkeys("pab", (101, ("a", "b", "p")))
    assert desk.all_sent[-1].num_lenders == 1
    p.role = "decode"
    desk.groups.update()
    assert desk.told() == dict.fromkeys("pab", (102, ("p", "a", "b")))
    assert desk.all_sent[-1].num_lenders == 0
    a.role = "prefill"
    desk.groups.update()
    assert desk.told() == dict.fromkeys("pab", (103, ("p", "b", "a")))
    assert desk.all_sent[-1].num_lenders == 1


def test_two_workers_of_any_role_both_decode_whatever_their_roles(desk: Desk) -> None:
    p = desk.add("p", "prefill", other_roles=("decode",))
    d = desk.add("d", other_roles=("prefill",))
    assert desk.told() == dict.fromkeys("pd", (100, ("p", "d")))
    assert desk.all_sent[-1].num_lenders == 0
    p.role, d.role = d.role, p.role
    desk.groups.update()
    assert not desk.told(), "their group is the same"


def test_a_lender_that_becomes_a_member_in_the_same_place_gets_another_generation(
    desk: Desk,
) -> None:
    desk.add("a")
    p = desk.add("p", "prefill", other_roles=("decode",))
    assert desk.told() == dict.fromkeys("ap", (100, ("a", "p")))
    p.role = "decode"
    desk.groups.update()
    assert desk.told() == dict.fromkeys("ap", (101, ("a", "p")))
    assert [message.num_lenders for message in desk.all_sent] == [1, 1, 0, 0]


def test_a_worker_that_drains_is_told_and_the_others_go_on(desk: Desk) -> None:
    first, _, _ = trio(desk)
    first.draining = True
    desk.groups.update()
    told = desk.told()
    assert told["b"] == told["c"]
    assert told["b"][1] == ("b", "c")
    assert told["a"] == (101, ()), "the group that it was in"


def test_a_dead_worker_is_told_nothing(desk: Desk) -> None:
    trio(desk)
    desk.registry.remove("b")
    desk.groups.update()
    assert {to: members for to, (_, members) in desk.told().items()} == {
        "a": ("a", "c"),
        "c": ("a", "c"),
    }
    desk.registry.remove("a")
    desk.groups.update()
    assert desk.told()["c"][1] == ()


def test_a_worker_that_joins_again_is_told_again(desk: Desk) -> None:
    trio(desk)
    desk.registry.remove("b")
    desk.add("b")
    assert {members for _, members in desk.told().values()} == {("a", "c", "b")}


def test_a_pair_that_cannot_reach_each_other_is_parted(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    a, b, c = trio(desk)
    d = desk.add("d")
    generation = desk.told()["a"][0]
    desk.groups.joined(a, SpreadJoined(generation))
    assert desk.told() == {}
    with caplog.at_level(logging.WARNING):
        desk.groups.joined(c, SpreadJoined(generation, "a", "no peer access"))
    assert "c and a compute no steps together: no peer access" in caplog.text
    told = {to: members for to, (_, members) in desk.told().items()}
    assert told == dict.fromkeys(("a", "b", "d"), ("a", "b", "d")) | {"c": ()}
    desk.groups.joined(d, SpreadJoined(generation, "a", "late"))  # of a group that is no more
    desk.groups.joined(b, SpreadJoined(desk.groups._groups[0].generation, "nobody", "?"))
    assert desk.told() == {}
    desk.registry.remove("a")
    desk.groups.update()
    assert desk.told()["c"][1] == ("b", "c", "d"), "without a they fit together"


def test_the_next_generation_has_the_other_lane_of_the_members_memory(desk: Desk) -> None:
    workers = {name: desk.add(name) for name in ("a1", "b1", "a2", "b2")}
    pairs = [("a1", "b1"), ("a1", "b2"), ("a2", "b1"), ("a2", "b2")]
    for exporter, puller in pairs:
        desk.registry.spread_pairs.report(exporter, puller, "another node", 0.0)
    desk.groups.update()
    generations = {name: generation for name, (generation, _) in desk.told().items()}
    for name in ("b2", "a2", "b2", "a2"):
        workers[name].draining = not workers[name].draining
        desk.groups.update()
        workers[name].draining = not workers[name].draining
        desk.groups.update()
        for to, sent in desk.sent:
            if sent.members:
                assert (sent.generation - generations[to]) % 2 == 1
                assert sent.generation > generations[to]
                generations[to] = sent.generation
        desk.told()


def test_two_nodes_make_two_groups(desk: Desk) -> None:
    workers = {name: desk.add(name) for name in ("a1", "b1", "a2", "b2")}
    for _ in range(4):
        for name, (generation, members) in desk.told().items():
            others = [m for m in members if m[0] != name[0]]
            if others:
                desk.groups.joined(workers[name], SpreadJoined(generation, others[0], "gone"))
    assert [[m.instance for m in g.members] for g in desk.groups._groups] == [
        ["a1", "a2"],
        ["b1", "b2"],
    ]


def test_a_group_has_at_most_so_many_members(desk: Desk) -> None:
    for number in range(MAX_MEMBERS + 2):
        desk.add(f"d-{number}")
    sizes = [len(group.members) for group in desk.groups._groups]
    assert sizes == [MAX_MEMBERS, 2]


def test_a_member_that_is_late_again_and_again_is_left_out_for_a_while(desk: Desk) -> None:
    a, _, _ = trio(desk)

    def say_late(count: int) -> None:
        a.spread.note(SpreadCounts(late=(("c", count),)), desk.now)
        desk.groups.take_counts(a)
        desk.groups.update()

    say_late(2 * MAX_LATE)  # to an earlier coordinator, maybe
    for count in range(2 * MAX_LATE, 4 * MAX_LATE):
        desk.now += WITHIN_S / 4
        say_late(count)
    assert desk.told() == {}, "now and then is no reason"
    say_late(5 * MAX_LATE)
    assert {to: members for to, (_, members) in desk.told().items()} == {
        "a": ("a", "b"), "b": ("a", "b"), "c": (),
    }  # fmt: skip
    desk.now += FIRST_OUT_S
    say_late(5 * MAX_LATE)
    assert desk.told()["c"][1] == ("a", "b", "c")


def test_a_member_is_left_out_twice_as_long_after_each_further_time() -> None:
    slow, times_s = SlowMembers(), []
    for _ in range(6):
        slow.leave_out("c", 0.0)
        times_s.append(slow.out_for_s("c", 0.0))
    assert times_s == [FIRST_OUT_S * 2**n for n in range(4)] + [MOST_OUT_S] * 2
    slow.keep_only(frozenset({"a"}))
    slow.leave_out("c", 0.0)
    assert slow.out_for_s("c", 0.0) == FIRST_OUT_S


def test_a_member_with_another_role_is_judged_afresh(desk: Desk) -> None:
    a, _, c = trio(desk)
    a.spread.note(SpreadCounts(late=(("c", 0),)), desk.now)
    a.spread.note(SpreadCounts(late=(("c", 2 * MAX_LATE),)), desk.now)
    desk.groups.take_counts(a)
    desk.groups.update()
    assert desk.told()["c"][1] == ()
    desk.groups.role_changed(c)
    assert desk.told()["c"][1] == ("a", "b", "c")
