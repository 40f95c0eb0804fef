"""A lender's part of spread steps: its share of each layer's experts, for the rows of others.

A worker that has no sequences needs no attention, DeltaNet, caches or sampling for that, so its
graphs have the exchange and the expert kernels only, and a step leaves nothing behind.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch

from engine.batch import SpreadPlan
from engine.graphs.graph_pool import Graph, GraphPool
from engine.model.model import Model
from engine.model.weights import MoeWeights
from engine.spread.group_memory import GroupMemory
from engine.spread.interface import Lent
from engine.spread.memory import TURN, first_flag
from engine.spread.outcome import SpreadOutcome
from engine.spread.shapes import GROUP_SIZES, SpreadShape, group_size
from engine.spread.triton_agree import agree, offer
from engine.spread.triton_collect import Collected, collect
from engine.spread.triton_experts import owned_experts
from engine.spread.triton_push import push
from transport.wire.spread import ExchangeExport


@dataclass(frozen=True)
class LentStep:
    """``engine.spread.interface.LentStep``. The last word of the outcome's state is the turn that
    this member had in the step."""

    outcome: SpreadOutcome

    @property
    def has_ended(self) -> bool:
        return self.outcome.is_known

    def result(self) -> Lent:
        aborted, late = self.outcome.read()
        return Lent(self.outcome.state[-1].item() >= 0, aborted, late)


class LendingSteps:
    """``engine.spread.interface.Lending``. ``group`` has the exchange memory, which steps of the
    engine's own may use too. ``shapes`` are all that members may launch. A wait for another member
    lasts ``limit_s`` at most, from the next ``join`` on."""

    def __init__(
        self,
        model: Model,
        group: GroupMemory,
        shapes: Sequence[SpreadShape],
        *,
        limit_s: float,
    ) -> None:
        self.shapes = tuple(shapes)
        self._model, self._group, self.limit_s = model, group, limit_s
        self.exchange = group.exchange
        layout = self.exchange.layout
        # The row of padding that a lender pushes: it has no experts.
        top_k, device = layout.top_k, self.exchange.control.device
        self._x = torch.zeros(1, layout.hidden, dtype=torch.bfloat16, device=device)
        self._ids = torch.full((1, top_k), -1, dtype=torch.int32, device=device)
        self._weights = torch.zeros(1, top_k, device=device)
        self._pool = GraphPool()
        self._graphs: dict[tuple[int, int], Graph[None]] = {}

    @property
    def export(self) -> ExchangeExport:
        return self._group.export

    @torch.inference_mode()
    def capture(self, sizes: Sequence[int] = GROUP_SIZES) -> None:
        """Graphs of the steps of groups of these sizes, before one is joined."""
        assert not self._group.num_decoding, "steps of a group that is joined wait for its members"
        for size in sorted(sizes, reverse=True):
            # What a lender computes of a row does not depend on how many are of one sequence.
            for rows_each in sorted({shape.num_tokens for shape in self.shapes}, reverse=True):
                forward = partial(self._forward, size, rows_each)
                forward()
                self._graphs[size, rows_each] = self._pool.capture(forward)

    def join(
        self, generation: int, rank: int, exports: Sequence[ExchangeExport], num_lenders: int
    ) -> None:
        handles = [export.handle for export in exports]
        self._group.join(generation, rank, handles, num_lenders, self.limit_s)

    def leave(self) -> None:
        self._group.leave()

    @torch.inference_mode()
    def lend(self, plan: SpreadPlan) -> LentStep:
        """As the interface says."""
        assert self._group.num_decoding, "no group is joined"
        if plan.first:
            self.exchange.header.zero_()  # an earlier step's abort is over
        num_layers = len(self._model.weights.layers)
        self.exchange.begin_step(first_flag(plan.generation, plan.round, num_layers))
        rows_each = SpreadShape(plan.bucket, plan.num_drafts).num_tokens
        self._graphs[group_size(self._group.num_decoding), rows_each].replay()
        turn = self.exchange.control[TURN : TURN + 1]
        found = torch.cat((self.exchange.header, turn.int()))
        return LentStep(SpreadOutcome.on_its_way(found))

    def _forward(self, size: int, rows_each: int) -> None:
        exchange = self.exchange
        offer(exchange)
        agree(exchange)
        for layer, weights in enumerate(self._model.weights.layers):
            assert isinstance(weights.mlp, MoeWeights), "spread steps share experts"
            gate_up, down = weights.mlp.gate_up, weights.mlp.down
            rows = Collected.empty(exchange, size, rows_each, gate_up.shape[0], self._x.dtype)
            push(self._x, self._ids, self._weights, exchange, layer, rows.owned)
            collect(rows, exchange, layer)
            owned_experts(rows, gate_up, down, None, exchange)
