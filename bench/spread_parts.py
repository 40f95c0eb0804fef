"""The parts of a spread layer alone, each as a graph of all layers (bench/spread_member.py)."""

from collections.abc import Callable

import torch

from engine.graphs import GraphPool
from engine.model.qwen35 import Qwen35
from engine.spread.memory import Exchange
from engine.spread.shapes import group_size
from engine.spread.triton_collect import Collected, collect
from engine.spread.triton_experts import experts
from engine.spread.triton_push import push


class Parts:
    """Rows and routes drawn once, other ones for each member and layer."""

    def __init__(
        self, model: Qwen35, exchange: Exchange, num_members: int, bucket: int, live: int
    ) -> None:
        self._model, self._exchange = model, exchange
        self._most_members = group_size(num_members)
        self._bucket = bucket
        config, device = model.config, exchange.control.device
        self._num_experts = config.num_experts
        generator = torch.Generator(device).manual_seed(int(exchange.control[0]))

        def draw(*shape: int) -> torch.Tensor:
            return torch.rand(*shape, generator=generator, device=device)

        self._x = draw(bucket, config.hidden_size).to(torch.bfloat16)
        self._weights = draw(bucket, config.num_experts_per_tok)
        self._shared = draw(bucket, config.shared_expert_intermediate_size).to(torch.bfloat16)
        self._ids = []
        for _ in model.weights.layers:
            order = draw(bucket, config.num_experts).argsort(1)
            ids = order[:, : config.num_experts_per_tok].int().contiguous()
            ids[live:] = -1
            self._ids.append(ids)

    def measure(self, begin_step: Callable[[int], None], repeats: int) -> dict[str, float]:
        """us a layer, of the exchange of rows and routes, and with the experts behind it; no result
        is read. ``begin_step`` gives each repeat flags of its own."""
        found, step = {}, 0
        for name, forward in (("exchange", self._exchange_rows), ("and experts", self._compute)):
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
            found[name] = 1e3 * began.elapsed_time(ended) / repeats / len(self._ids)
        return found

    def _exchange_rows(self) -> None:
        for layer in range(len(self._ids)):
            self._gather(layer)

    def _compute(self) -> None:
        for layer, weights in enumerate(self._model.weights.layers):
            moe = weights.moe
            shared = self._shared, moe.shared_down
            experts(self._gather(layer), moe.gate_up, moe.down, shared, self._exchange)

    def _gather(self, layer: int) -> Collected:
        rows = Collected.empty(
            self._exchange, self._most_members, self._bucket, self._num_experts, self._x.dtype
        )
        push(self._x, self._ids[layer], self._weights, self._exchange, layer, rows.counts)
        collect(rows, self._exchange, layer)
        return rows
