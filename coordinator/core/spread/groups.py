"""Spread groups: workers that compute their decode steps together. Pure.

``SpreadGroups`` is the public object of this room; members.py is private. Only the hub and the
inbox may call it.

The members of a group take new work, their breakers are closed, each has a GPU of its own, and none
has failed to open the memory of another member. A group has a generation. When its members change,
the remaining ones get a new generation, and a member of an old one takes no more steps with them.
Workers that joined earlier come first, and decoding workers before prefill workers, which lend. A
worker that is given the other role gets a place in another generation. Two workers of any role both
decode in their group: the prefill worker keeps sequences when few prompts come.
Workers that do not fit into a group form the next one (another node, for example).
"""

import logging
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass

from coordinator.core.contract import SpreadStatus
from coordinator.core.spread.members import (
    SLOW,
    Shared,
    SlowClocks,
    SlowMembers,
    SlowSteps,
    spread_status,
)
from coordinator.core.workers.registry import Registry
from coordinator.core.workers.worker import Worker
from transport.wire.messages import Role, ToWorker
from transport.wire.spread import MAX_MEMBERS, MAX_ROWS, SpreadGroup, SpreadJoined, SpreadMember

LENDERS: Role = "prefill"
"""The role of lenders: they lend their bandwidth while they have no prompts, and no sequences that
they keep."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Group:
    """One generation of a group. A worker that joins again is another member."""

    generation: int
    members: tuple[Worker, ...]
    """In the order of their ranks, lenders last."""
    num_lenders: int
    """As of its start: a worker that then changes its role is soon in another generation."""

    @property
    def decoding(self) -> tuple[Worker, ...]:
        return self.members[: len(self.members) - self.num_lenders]

    @property
    def lenders(self) -> tuple[Worker, ...]:
        return self.members[len(self.members) - self.num_lenders :]

    def member(self, instance: str) -> Worker | None:
        return next((m for m in self.members if m.instance == instance), None)


class SpreadGroups:
    """Forms the groups. ``send`` gives a worker a message; ``first_generation`` is above the
    generations of all earlier coordinators."""

    def __init__(
        self,
        registry: Registry,
        send: Callable[[str, ToWorker], object],
        monotonic: Callable[[], float],
        first_generation: int,
    ) -> None:
        self._registry = registry
        self._send = send
        self._monotonic = monotonic
        self._next_generation = first_generation
        self._groups: list[Group] = []
        self._last: dict[Worker, int] = {}  # the last generation of each worker
        self._slow = SlowMembers()
        self._clocks = SlowClocks()
        self._steps = SlowSteps()

    def update(self) -> None:
        """Form new groups where members have changed. Call it whenever workers joined, left or
        changed."""
        here, wanted = set(self._registry.all()), self._wanted()
        former = {(group.members, group.num_lenders): group for group in self._groups}
        self._groups = [
            former.get((members, _num_lenders(members))) or self._form(members)
            for members in wanted
        ]
        placed = {member for members in wanted for member in members}
        for group in former.values():
            if group not in self._groups:
                names = [member.instance for member in group.members]
                self._clocks.forget(names)
                self._steps.forget(names)
            for member in here.intersection(group.members) - placed:
                self._send(member.instance, SpreadGroup(group.generation))
        self._last = {member: last for member, last in self._last.items() if member in here}
        self._slow.keep_only({worker.instance for worker in here})

    def role_changed(self, worker: Worker) -> None:
        """Judge a worker afresh: one that was late because of prompts may be left out no longer."""
        self._slow.forget(worker.instance)
        self.update()

    def joined(self, worker: Worker, message: SpreadJoined) -> None:
        """Handle ``SpreadJoined``: a worker has opened its group's memory, or failed. A pair that
        failed is separated."""
        group = next((g for g in self._groups if g.generation == message.generation), None)
        if group is None or not message.problem:
            return
        peer = group.member(message.peer)
        if peer is None or worker not in group.members:
            return
        log.warning(
            "%s and %s compute no steps together: %s", worker.instance, peer.instance,
            message.problem,
        )  # fmt: skip
        self._registry.spread_pairs.report(
            peer.instance, worker.instance, message.problem, self._monotonic()
        )
        self.update()

    def take_counts(self, worker: Worker) -> None:
        """Judge the members of a worker's group by its newest heartbeat: how often it waited in
        vain, the GPUs' clocks, and the times within steps."""
        late = dict(worker.spread.growth.late)  # without counts for an earlier coordinator
        for slow in self._slow.note(worker.instance, late, self._monotonic()):
            log.warning("%s is left out of spread steps for a while: it is often late", slow)
        if (group := self._group_of(worker)) is not None:
            self._judge_clocks(group)
            self._judge_steps(group)

    def _judge_clocks(self, group: Group) -> None:
        clocks = {member.instance: _clock_in_steps(member) for member in group.decoding}
        now = self._monotonic()
        for slow in self._clocks.note(clocks, now):
            log.warning(
                "%s is left out of spread steps for a while: its GPU runs at %.0f MHz, below %g of "
                "the others' clocks", slow, clocks[slow], SLOW,
            )  # fmt: skip
            self._slow.leave_out(slow, now)

    def _judge_steps(self, group: Group) -> None:
        now = self._monotonic()
        shared: dict[str, Shared | None] = {m.instance: _shared(m) for m in group.decoding}
        shared |= dict.fromkeys(m.instance for m in group.lenders)
        for member, waited_ms, saved_ms in self._steps.note(shared, now):
            log.warning(
                "%s is left out of spread steps for a while: in each the others wait %.2f ms for "
                "it, and save %.2f ms by it", member, waited_ms, saved_ms,
            )  # fmt: skip
            self._slow.leave_out(member, now)

    def status(self, worker: Worker) -> SpreadStatus | None:
        """The status of a worker's part in groups; None for a worker that never takes part, because
        it offers no memory to others."""
        if worker.hello.spread is None:
            return None
        group = self._group_of(worker)
        members = tuple(member.instance for member in group.members) if group else ()
        left_out_s = self._slow.out_for_s(worker.instance, self._monotonic())
        return spread_status(worker.spread, members, left_out_s)

    def _group_of(self, worker: Worker) -> Group | None:
        return next((group for group in self._groups if worker in group.members), None)

    def _wanted(self) -> list[tuple[Worker, ...]]:
        """The members of each group that should exist now."""
        now, rest, joined = self._monotonic(), list[Worker](), self._registry.all()
        for worker in joined:
            fit = worker.hello.spread is not None
            takes_work = not worker.draining and worker.breaker.closed
            if fit and takes_work and not self._slow.is_out(worker.instance, now):
                rest.append(worker)
        groups = []
        rest.sort(key=_lends)
        while rest and not _lends(rest[0]):
            members = list[Worker]()
            for worker in rest:
                broken = self._registry.spread_pairs.broken_of(worker.instance)
                alike = not members or _alike(worker, members[0])
                parted = any(
                    member.instance in broken or _share_a_gpu(member, worker) for member in members
                )
                if len(members) < MAX_MEMBERS and alike and not parted:
                    members.append(worker)
            rest = [worker for worker in rest if worker not in members]
            if not _num_lenders(members):  # so that a change of roles makes no other group
                members.sort(key=joined.index)
            if len(members) > 1:
                groups.append(tuple(members))
        return groups

    def _form(self, members: tuple[Worker, ...]) -> Group:
        lanes = {self._last[member] % 2 for member in members if member in self._last}
        group = Group(self._new_generation(lanes), members, _num_lenders(members))
        self._last |= dict.fromkeys(members, group.generation)
        names = [member.instance for member in members]
        log.info("spread group %d: %s", group.generation, ", ".join(names))
        told = []
        for member in members:
            assert member.hello.spread is not None, "a member that exports nothing"
            told.append(SpreadMember(member.instance, member.hello.spread))
        for name in names:
            self._send(name, SpreadGroup(group.generation, tuple(told), group.num_lenders))
        return group

    def _new_generation(self, used: Set[int]) -> int:
        """A new generation whose lane of the members' memory (its parity) was not ``used`` by the
        generations before, if possible: a late member may still write there."""
        generation = self._next_generation
        if generation % 2 in used and len(used) == 1:
            generation += 1
        self._next_generation = generation + 1
        return generation


def _clock_in_steps(worker: Worker) -> float | None:
    """The clock of its GPU in MHz; None if it computed no spread steps since its last heartbeat, or
    does not report its clock."""
    if worker.gpu is None or not worker.spread.growth.num_steps:
        return None
    return worker.gpu.sm_clock_mhz


def _shared(worker: Worker) -> Shared:
    """What the worker computed together with others since its last heartbeat."""
    growth = worker.spread.growth
    return Shared(
        growth.num_steps, worker.gauges.running, dict(growth.within_us), growth.saved_us
    )  # fmt: skip


def _share_a_gpu(one: Worker, other: Worker) -> bool:
    """True if both workers are on one GPU. They would compute in turns: while one waits for the
    other's rows, it keeps the other from the GPU."""
    return bool(one.hello.gpu) and one.hello.gpu == other.hello.gpu


def _lends(worker: Worker) -> bool:
    return worker.role == LENDERS


def _num_lenders(members: Sequence[Worker]) -> int:
    num_lenders = sum(map(_lends, members))
    if len(members) == 2 and all(map(_takes_any_role, members)):
        num_lenders *= _slots(members[0]) != _slots(members[1])
    return num_lenders


def _takes_any_role(worker: Worker) -> bool:
    return worker.can_be("prefill") and worker.can_be("decode")


def _alike(worker: Worker, first: Worker) -> bool:
    """True if both workers have graphs of the same shapes, as members of a step need."""
    one, other = worker.hello.spread, first.hello.spread
    assert one is not None
    assert other is not None
    same_rows = _lends(worker) or _slots(worker) == _slots(first)
    return same_rows and one.max_drafts == other.max_drafts


def _slots(worker: Worker) -> int:
    """The most rows of the worker's graphs."""
    return min(worker.hello.memory.pools.num_state_slots, MAX_ROWS)
