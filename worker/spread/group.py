"""The worker's place in its spread group, as its loop sees it, and the place without a group.

Workers that decode have a Membership (membership.py), prefill workers are Lenders (lender.py), and
workers of any role are what each group says (either_place.py).
"""

from collections.abc import Sequence
from math import inf
from typing import Literal, Protocol

from decode.lockstep import LOCAL
from engine.batch import ForwardBatch, SpreadPlan
from engine.cache.allocator import CacheAllocator
from engine.step import Step
from transport.wire.spread import SpreadCounts, SpreadExport, SpreadGroup, SpreadJoined
from worker.spread.trial_rows import TrialMemory

Plan = SpreadPlan | Literal["local", "wait"]


class Group(Protocol):
    """A place in a spread group. Only the worker's thread calls it."""

    @property
    def export(self) -> SpreadExport | None:
        """The memory that peers open; None: this worker takes part in no group."""
        ...

    @property
    def look_s(self) -> float:
        """Seconds that the worker may sleep without a look at the others."""
        ...

    @property
    def joined(self) -> bool:
        """True while there are others to take steps with."""
        ...

    @property
    def in_step(self) -> bool:
        """True if the last that this worker has launched is a step of the group, for sequences of
        its own."""
        ...

    @property
    def others_decode(self) -> bool:
        """True if other members have sequences: the group's next step waits for this worker too."""
        ...

    @property
    def holds_prompts(self) -> bool:
        """True if this worker's prompts wait for those of the others: for a few steps at most."""
        ...

    @property
    def is_awaited(self) -> bool:
        """True if all others would take part in a step of the group, and one of them waits for this
        worker."""
        ...

    @property
    def trial_memory(self) -> TrialMemory:
        """The part of the worker's cache that ``when_idle`` holds; ``interrupt`` frees it."""
        ...

    def max_rows(self, wanted: int) -> int:
        """The most sequences that the next decode step should have, of ``wanted`` ones."""
        ...

    def decide(self, num_rows: int, num_drafts: int = 0, *, willing: bool) -> Plan:
        """Plan the next decode step, of ``num_rows`` sequences with up to ``num_drafts`` drafts
        each: a step of the group, a local step, or "wait" to be asked again. ``willing``: this
        worker has nothing else to compute."""
        ...

    def launch(self, batch: ForwardBatch, plan: SpreadPlan) -> Step:
        """Launch the step that ``decide`` has planned."""
        ...

    def record_step(self, seconds: float, *, spread: bool, waited_s: Sequence[float] = ()) -> None:
        """Record how long a decode step took, and how long the device waited for each member within
        it. ``spread``: it was a step of the group."""
        ...

    def aborted(self, late: tuple[int, ...]) -> None:
        """Record that spread steps were taken back because the members of these ranks were late."""
        ...

    def when_idle(self, memory: CacheAllocator, *, willing: bool, empty: bool) -> None:
        """Use a round in which the worker launched nothing. A lender takes part in the others' next
        step, if all have committed to one and this worker is ``willing``: it has nothing else to
        compute. A member that decodes times steps in ``memory``, the worker's cache, if the worker
        is ``empty``: it has no request at all."""
        ...

    def interrupt(self) -> None:
        """End the steps that are only timed and free their memory, since an order has come."""
        ...

    def before_prompts(self) -> None:
        """Prompts are launched next, which takes the host longer than a step: a member that decodes
        takes part in no steps until its next decision, and the others need not wait for it. At that
        decision all steps of the group are processed."""
        ...

    def behind_prompts(self) -> None:
        """Prompts have been launched: a lender waits for what it has lent before them, and lends no
        more until its next decision."""
        ...

    def join(self, group: SpreadGroup) -> SpreadJoined | None:
        """Leave the group before, and become a member of this one, while no step is under way.
        Returns the answer to the coordinator, None where this worker is in no group now."""
        ...

    def leave(self) -> None:
        """Take part in no more steps of the group, while none is under way."""
        ...

    def counts(self) -> SpreadCounts:
        """The counts of spread steps since the worker's start."""
        ...

    def close(self) -> None: ...


class Alone:
    """The group of a worker that takes part in none."""

    look_s = inf
    export = None
    joined = in_step = others_decode = holds_prompts = is_awaited = False
    trial_memory = TrialMemory()

    def max_rows(self, wanted: int) -> int:
        return wanted

    def decide(self, num_rows: int, num_drafts: int = 0, *, willing: bool) -> Plan:
        return LOCAL

    def launch(self, batch: ForwardBatch, plan: SpreadPlan) -> Step:
        raise AssertionError("a spread step without a group")

    def record_step(self, seconds: float, *, spread: bool, waited_s: Sequence[float] = ()) -> None:
        """Nothing is counted without a group."""

    def aborted(self, late: tuple[int, ...]) -> None:
        raise AssertionError("a spread step aborted that was not launched")

    def when_idle(self, memory: CacheAllocator, *, willing: bool, empty: bool) -> None:
        """There are no others to lend to, or to time steps with."""

    def interrupt(self) -> None:
        """Nothing is timed."""

    def before_prompts(self) -> None:
        """No other worker waits for this one."""

    def behind_prompts(self) -> None:
        """Nothing is lent."""

    def join(self, group: SpreadGroup) -> SpreadJoined | None:
        return None

    def leave(self) -> None:
        """There is nothing to leave."""

    def counts(self) -> SpreadCounts:
        return SpreadCounts()

    def close(self) -> None:
        """Nothing is open."""
