"""The place of a worker of any role in spread groups: in each it is a member that decodes or one
that lends, as the coordinator says when the group forms."""

from collections.abc import Sequence

from engine.batch import ForwardBatch, SpreadPlan
from engine.cache.allocator import CacheAllocator
from engine.step import Step
from transport.wire.spread import SpreadCounts, SpreadExport, SpreadGroup, SpreadJoined
from worker.spread.group import Plan
from worker.spread.lender import Lender
from worker.spread.membership import Membership
from worker.spread.trial_rows import TrialMemory


class EitherPlace:
    """``worker.spread.group.Group``. ``member`` and ``lender`` have the same record and exchange
    memory, and are never in a group at the same time."""

    def __init__(self, instance: str, member: Membership, lender: Lender) -> None:
        self._instance = instance
        self._member, self._lender = member, lender
        lender.count_with(member)
        self._place: Membership | Lender = member

    def join(self, group: SpreadGroup) -> SpreadJoined | None:
        self._place.leave()
        lenders = group.members[len(group.members) - group.num_lenders :]
        lends = any(lender.instance == self._instance for lender in lenders)
        self._place = self._lender if lends else self._member
        return self._place.join(group)

    def leave(self) -> None:
        self._place.leave()

    @property
    def export(self) -> SpreadExport:
        return self._member.export

    @property
    def look_s(self) -> float:
        return self._place.look_s

    @property
    def joined(self) -> bool:
        return self._place.joined

    @property
    def in_step(self) -> bool:
        return self._place.in_step

    @property
    def others_decode(self) -> bool:
        return self._place.others_decode

    @property
    def holds_prompts(self) -> bool:
        return self._place.holds_prompts

    @property
    def is_awaited(self) -> bool:
        return self._place.is_awaited

    @property
    def trial_memory(self) -> TrialMemory:
        return self._place.trial_memory

    def max_rows(self, wanted: int) -> int:
        return self._place.max_rows(wanted)

    def decide(self, num_rows: int, num_drafts: int = 0, *, willing: bool) -> Plan:
        return self._place.decide(num_rows, num_drafts, willing=willing)

    def launch(self, batch: ForwardBatch, plan: SpreadPlan) -> Step:
        return self._place.launch(batch, plan)

    def record_step(self, seconds: float, *, spread: bool, waited_s: Sequence[float] = ()) -> None:
        self._place.record_step(seconds, spread=spread, waited_s=waited_s)

    def aborted(self, late: tuple[int, ...]) -> None:
        self._place.aborted(late)

    def when_idle(self, memory: CacheAllocator, *, willing: bool, empty: bool) -> None:
        self._place.when_idle(memory, willing=willing, empty=empty)

    def interrupt(self) -> None:
        self._place.interrupt()

    def before_prompts(self) -> None:
        self._place.before_prompts()

    def behind_prompts(self) -> None:
        self._place.behind_prompts()

    def counts(self) -> SpreadCounts:
        return self._place.counts()

    def close(self) -> None:
        self._place.close()
