"""Spread decode steps of one engine: its membership of a group on the device, and its launches.

capture     at start: graphs for groups of every size.
join        Map the others' memory.
launch      Enqueue a step that all members launch with the same round and shape, with what undoes
            it if it was aborted.
read        Read whether it was aborted, and which members were waited for in vain.
leave       Unmap the others' memory.
"""

from collections import deque
from collections.abc import Sequence

import torch

from engine.batch import ForwardBatch, SpreadPlan
from engine.kernels.triton_set import TritonKernels
from engine.spread.group_memory import GroupMemory
from engine.spread.kernels import SpreadKernels
from engine.spread.member_steps import Draws, MemberSteps
from engine.spread.memory import first_flag
from engine.spread.outcome import SpreadOutcome, StepRead, Waited
from engine.spread.shapes import GROUP_SIZES, SpreadShape, group_size
from transport.wire.spread import ExchangeExport


class SpreadSteps:
    """``member`` has the engine's graphs, ``group`` the exchange memory of this member and of its
    peers. A wait for another member lasts ``limit_s`` at most, from the next ``join`` on.
    ``waited``: how long the step that was read last waited for each member. Only the engine's
    thread calls this."""

    def __init__(
        self,
        member: MemberSteps,
        local: TritonKernels,
        group: GroupMemory,
        num_layers: int,
        shapes: Sequence[SpreadShape],
        *,
        limit_s: float,
    ) -> None:
        self.shapes = tuple(shapes)
        self._member, self._local, self._num_layers = member, local, num_layers
        self.limit_s = limit_s
        self._group, self.exchange = group, group.exchange
        self._unread: deque[SpreadOutcome] = deque()
        self._last: SpreadOutcome | None = None
        self.waited = Waited((), ())
        self._generation = 0

    @property
    def export(self) -> ExchangeExport:
        """What the other members open."""
        return self._group.export

    def capture(self, sizes: Sequence[int] = GROUP_SIZES) -> None:
        """Graphs of the steps of groups of these sizes, before one is joined."""
        assert not self._group.num_decoding, "steps of a group that is joined wait for its members"
        for most_members in sorted(sizes, reverse=True):
            kernels = SpreadKernels(self._local, self.exchange, most_members)
            self._member.capture(most_members, self.shapes, kernels)
        self._warm_up()

    @torch.inference_mode()
    def _warm_up(self) -> None:
        """Run once what surrounds a step: a member that compiles a kernel when it has committed to
        a step is late."""
        SpreadOutcome.of(self.exchange.state).wait()
        self.exchange.reset()
        self.exchange.withdraw()

    def join(
        self, generation: int, place: int, handles: Sequence[str], num_lenders: int = 0
    ) -> None:
        """As ``GroupMemory.join``; no step is under way."""
        assert not self._unread, "a step is under way"
        self._group.join(generation, place, handles, num_lenders, self.limit_s)
        self._generation, self._last = generation, None

    def leave(self) -> None:
        """Unmap the others' memory, while no step is under way."""
        assert not self._unread, "a step is under way"
        self._group.leave()

    @torch.inference_mode()
    def launch(self, batch: ForwardBatch, plan: SpreadPlan) -> tuple[Draws, SpreadOutcome]:
        """Enqueue the step of a round, which no step of this generation had before: if it is
        aborted, the sequences are as before it."""
        assert self._group.num_decoding, "no group is joined"
        assert plan.generation == self._generation, (plan, self._generation)
        if plan.first:
            assert not self._unread, "a step is under way"
            self.exchange.reset()
        self.exchange.begin_step(first_flag(plan.generation, plan.round, self._num_layers))
        shape = SpreadShape(plan.bucket, plan.num_drafts)
        settle = self._member.launch(group_size(self._group.num_decoding), shape, batch)
        outcome = SpreadOutcome.of(self.exchange.state)
        self._unread.append(outcome)
        return settle(outcome), outcome

    def read(self, outcome: SpreadOutcome) -> StepRead:
        """Wait for the oldest unread step, and return what became of it."""
        assert self._unread[0] is outcome, "steps are read in their order"
        self._unread.popleft()
        aborted, late = outcome.read()
        self._member.read(aborted=aborted)
        found = StepRead(aborted, late, outcome.waited_since(self._last))
        self._last, self.waited = outcome, found.waited
        return found
