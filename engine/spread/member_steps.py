"""What a member computes of a spread step beside the experts, with and without drafts."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from engine.batch import ForwardBatch
from engine.graphs.decode_graphs import DecodeGraphs
from engine.graphs.draft_graphs import DraftGraphs
from engine.kernels.interface import Kernels
from engine.sampling.sampler import Sampler
from engine.spread.outcome import SettledDraw, SpreadOutcome
from engine.spread.shapes import Shapes, SpreadShape, shape_for
from engine.step import Outcome, SampleRow

Draws = tuple[tuple[Sequence[int], Outcome], ...]
"""As a ``Step`` has them."""
Settle = Callable[[SpreadOutcome], Draws]
"""Enqueues the rest of a step, once its exchange is over and it is known what became of it: the
sequences are as before a step that was aborted."""


class MemberSteps(Protocol):
    """An engine's decode steps as ``SpreadSteps`` captures and launches them for a group."""

    def capture(self, size: int, shapes: Sequence[SpreadShape], kernels: Kernels) -> None:
        """Graphs for groups of up to ``size`` members, with the kernels of one of them, and what
        follows them."""
        ...

    def launch(self, size: int, shape: SpreadShape, batch: ForwardBatch) -> Settle:
        """Enqueue a step that all members launch with this shape, as far as members exchange
        anything; there may be no rows."""
        ...

    def read(self, *, aborted: bool) -> None:
        """The host knows what became of the oldest step that it had not read."""
        ...


class PlainSteps:
    """One token of each sequence."""

    def __init__(self, graphs: DecodeGraphs, sampler: Sampler) -> None:
        self._graphs, self._sampler = graphs, sampler

    def capture(self, size: int, shapes: Sequence[SpreadShape], kernels: Kernels) -> None:
        self._graphs.capture_spread(size, [shape.bucket for shape in shapes], kernels)

    def launch(self, size: int, shape: SpreadShape, batch: ForwardBatch) -> Settle:
        rows = batch.rows
        stepped = self._graphs.launch_spread(size, shape.bucket, rows)
        if not rows:
            return _nothing
        sampled = [SampleRow(row.state_slot, row.start + 1) for row in rows]
        draw = self._sampler.sample(*stepped, sampled, held=True)
        _, slots, _ = stepped

        def settle(outcome: SpreadOutcome) -> Draws:
            self._graphs.settle_spread(len(rows), outcome.aborted)
            if self._sampler.has_history(row.state_slot for row in rows):
                num_out = (outcome.aborted == 0).long().expand(len(rows))
                source = SettledDraw(draw, outcome)
                self._sampler.note_output(sampled, slots, draw.device_ids, num_out, source)
            return ((range(len(rows)), draw),)

        return settle

    def read(self, *, aborted: bool) -> None:
        """The host keeps nothing of a sequence."""


class DraftSteps:
    """Drafts are verified together, and made by each worker alone: no more than a step of
    ``shapes`` could verify of as many sequences."""

    def __init__(self, graphs: DraftGraphs, shapes: Shapes) -> None:
        self._graphs, self._shapes = graphs, shapes
        self._made: deque[Mapping[int, int]] = deque()
        """For each unread step: how many drafts its sequences had before it, by state slot."""

    def capture(self, size: int, shapes: Sequence[SpreadShape], kernels: Kernels) -> None:
        self._graphs.capture_spread(size, shapes, kernels)

    def launch(self, size: int, shape: SpreadShape, batch: ForwardBatch) -> Settle:
        self._made.append(self._graphs.num_made(batch.rows))
        step = self._graphs.launch_spread(size, shape, batch.rows)
        if step is None:
            return _nothing
        num_next = shape_for(self._shapes, len(batch.rows), batch.num_next_drafts).num_drafts
        return lambda outcome: (self._graphs.settle(step, num_next, outcome.aborted),)

    def read(self, *, aborted: bool) -> None:
        """Steps behind an aborted one have aborted too, so that all are taken back at once."""
        if aborted:
            while self._made:
                self._graphs.take_back(self._made.pop())
        elif self._made:
            self._made.popleft()


def _nothing(outcome: SpreadOutcome) -> Draws:
    return ()
