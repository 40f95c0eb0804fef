"""The launches of a layer's experts alone, one more at a time, each chain as a graph of all layers
(bench/spread_member.py)."""

import time
from collections.abc import Callable, Mapping

import torch

from engine.graphs import GraphPool
from engine.kernels.triton_add_norm import add_rms_norm
from engine.kernels.triton_experts import experts as local_experts
from engine.kernels.triton_route import route_shared
from engine.model.model import Model
from engine.model.weights import MoeWeights
from engine.spread.memory import Exchange
from engine.spread.shapes import group_size
from engine.spread.triton_collect import Collected, collect
from engine.spread.triton_experts import experts
from engine.spread.triton_route_push import route_push
from engine.spread.triton_take_up import Returned, take_up

EPS = 1e-6
SETTLED_S = 0.1
"""After so long all members have ended a chain: they launch the same ones, and wait for rows."""
Chain = Callable[[int], None]
"""Launches what is measured of one layer."""


class Parts:
    """Rows and logits drawn once, other ones for each member and layer; ``live`` of ``bucket`` rows
    are no padding."""

    def __init__(
        self, model: Model, exchange: Exchange, num_members: int, bucket: int, live: int
    ) -> None:
        self._model, self._exchange = model, exchange
        self._most_members = group_size(num_members)
        config, device = model.config, exchange.control.device
        self._num_experts, self._top_k = config.moe.num_experts, config.moe.num_experts_per_tok
        generator = torch.Generator(device).manual_seed(int(exchange.control[0]))

        def draw(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator, device=device)

        self._x = draw(bucket, config.hidden_size).to(torch.bfloat16)
        self._hidden = draw(bucket, config.hidden_size).to(torch.bfloat16)
        self._norm = 1 + 0.1 * draw(config.hidden_size)
        self._live = torch.arange(bucket, dtype=torch.int32, device=device)
        self._live[live:] = -1
        width = 2 * config.moe.shared_expert_intermediate_size + config.moe.num_experts + 1
        self._projected = [draw(bucket, width) for _ in model.weights.layers]

    def measure(self, begin_step: Callable[[int], None], repeats: int) -> dict[str, float]:
        """us a layer of each chain, which has all launches of the one before it. ``begin_step``
        gives each repeat flags of its own."""
        chains: Mapping[str, Chain] = {
            "local: route": self._route,
            "local: experts": self._experts,
            "local: norm": lambda layer: self._experts(layer, norm=True),
            "spread: push": lambda layer: self._spread(layer, 1),
            "spread: collect": lambda layer: self._spread(layer, 2),
            "spread: experts": lambda layer: self._spread(layer, 3),
            "spread: take up": lambda layer: self._spread(layer, 4),
        }
        found, step = {}, 0
        for name, chain in chains.items():
            self._empty()

            def forward(chain: Chain = chain) -> None:
                for layer in range(len(self._projected)):
                    chain(layer)

            begin_step(step)
            forward()
            begin_step(step + 1)
            forward()
            graph, _ = GraphPool().capture(forward)
            began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            for i in range(4 + repeats):
                if i == 4:
                    began.record()
                begin_step(step + 2 + i)
                graph.replay()
            ended.record()
            ended.synchronize()
            step += 6 + repeats
            found[name] = 1e3 * began.elapsed_time(ended) / repeats / len(self._projected)
        return found

    def _empty(self) -> None:
        """No result has come, of the chain before either, which the other members have ended."""
        torch.cuda.synchronize()
        time.sleep(SETTLED_S)
        self._exchange.reset()
        torch.cuda.synchronize()
        time.sleep(SETTLED_S)

    def _route(self, layer: int) -> None:
        route_shared(
            self._projected[layer], self._num_experts, self._top_k, self._x.dtype, self._live
        )

    def _experts(self, layer: int, *, norm: bool = False) -> None:
        ids, weights, shared = route_shared(
            self._projected[layer], self._num_experts, self._top_k, self._x.dtype, self._live
        )
        moe = self._model.weights.layers[layer].mlp
        assert isinstance(moe, MoeWeights), "a model with experts"
        at_home = shared, moe.shared_down
        y = local_experts(self._x, ids, weights, moe.gate_up, moe.down, at_home)
        if norm:
            add_rms_norm(self._hidden, y, self._norm, EPS)

    def _spread(self, layer: int, launches: int) -> None:
        exchange, moe = self._exchange, self._model.weights.layers[layer].mlp
        assert isinstance(moe, MoeWeights), "a model with experts"
        rows = Collected.empty(
            exchange, self._most_members, len(self._x), self._num_experts, self._x.dtype
        )
        ids, shared = route_push(
            self._x, self._projected[layer], self._num_experts, self._live, exchange, layer,
            rows.owned,
        )  # fmt: skip
        if launches > 1:
            collect(rows, exchange, layer)
        if launches > 2:
            experts(rows, moe.gate_up, moe.down, (shared, moe.shared_down), exchange)
        if launches > 3:
            take_up(self._hidden, Returned(exchange, self._live, ids, rows.owners), self._norm, EPS)
