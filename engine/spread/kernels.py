"""The kernel set of a spread step: workers of a node that compute the experts of a step together.

Each member keeps attention, DeltaNet, caches, dense weights and the shared expert to itself. Of
each layer's experts it computes those that it owns, for the rows of all members:

    agree      in the first layer: which lenders take part in the step
    route push own rows and their routing, into every member's inbox
    collect    wait for all rows; which active experts are owned here, and their rows
    experts    the owned ones, each result into the memory of its row's home
    take up    wait for the results of the own rows; add them in the local step's order, and norm

All members have the same weights and launch the same layers with as many rows, padding included. A
row's bits are those of the local step. Source of the idea: DeepEP's low-latency dispatch and
combine, here without fences or barriers, over plain peer memory (engine/spread/memory.py).
"""

from itertools import count

import torch

from engine.inputs import Inputs
from engine.kernels.interface import Activation, Pending
from engine.kernels.triton_set import TritonKernels
from engine.model.weights import DenseWeights, MoeWeights
from engine.spread.memory import Exchange
from engine.spread.triton_agree import agree
from engine.spread.triton_collect import Collected, collect
from engine.spread.triton_experts import owned_experts
from engine.spread.triton_route_push import route_push
from engine.spread.triton_take_up import Returned, take_up


class SpreadKernels:
    """``engine.kernels.interface.Kernels`` of a decoding member, in a group with at most
    ``most_members`` decoding members. Only the experts are shared out; all other kernels are those
    of ``local``. For passes of decode rows with ``Inputs.live``."""

    prefill_block: int | None = None

    def __init__(self, local: TritonKernels, exchange: Exchange, most_members: int) -> None:
        self._exchange, self._most_members = exchange, most_members
        self._local_norm, self._moe_in = local.add_norm, local.moe_in
        self.ring_shape, self.logits = local.ring_shape, local.logits
        self.embed = local.embed
        self.linear_add, self.deltanet = local.linear_add, local.deltanet
        self.attention, self.write_kv = local.attention, local.write_kv
        self.draft_input = local.draft_input

    def moe_add(
        self,
        hidden: torch.Tensor,
        pending: Pending,
        norm: torch.Tensor,
        eps: float,
        weights: MoeWeights,
        top_k: int,
        inputs: Inputs,
    ) -> tuple[torch.Tensor, Returned]:
        assert inputs.live is not None
        layer = next(inputs.once("spread layers", count))
        num_experts = weights.gate_up.shape[0]
        hidden, normed, projected = self._moe_in(hidden, pending, norm, eps, weights)
        x = normed.tensor
        exchange = self._exchange
        assert top_k == exchange.layout.top_k
        if layer == 0:
            agree(exchange)
        rows = Collected.empty(exchange, self._most_members, len(x), num_experts, x.dtype)
        ids, shared = route_push(
            x, projected, num_experts, inputs.live, exchange, layer, rows.owned
        )
        collect(rows, exchange, layer)
        own = shared, weights.shared_down
        owned_experts(rows, weights.gate_up, weights.down, own, exchange)
        return hidden, Returned(exchange, inputs.live, ids, rows.owners)

    def add_norm(
        self, hidden: torch.Tensor, pending: Pending, norm: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, Activation]:
        if isinstance(pending, Returned):
            hidden, x = take_up(hidden, pending, norm, eps)
            return hidden, Activation(x)
        return self._local_norm(hidden, pending, norm, eps)

    def dense_add(
        self,
        hidden: torch.Tensor,
        pending: Pending,
        norm: torch.Tensor,
        eps: float,
        weights: DenseWeights,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        raise AssertionError("triton_support.py lets no model with a dense MLP use this set")

    def final_norm(
        self,
        hidden: torch.Tensor,
        pending: Pending,
        norm: torch.Tensor,
        eps: float,
        index: torch.Tensor | None,
    ) -> torch.Tensor:
        assert index is None, "every row of a decode step is sampled"
        return self.add_norm(hidden, pending, norm, eps)[1].tensor
