"""A whole model by the kernels of a spread step, for a group of one, against the local step."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engine import graphs, weights
from engine.batch import Row
from engine.kernels.triton_set import TritonKernels
from engine.model.config import ModelConfig
from engine.model.registry import build
from engine.spread.kernels import SpreadKernels
from engine.spread.memory import HEADER_BYTES, Exchange, ExchangeLayout, first_flag
from transport.copy.region import Region
from transport.copy.tensors import CacheTensors
from transport.wire.layout import PoolSize

FULL_SIZE = Path(__file__).parents[2] / "bench/models/qwen3.5-35b-a3b/config.json"
SMALLER = {
    "hidden_size": 512, "num_experts": 8, "num_experts_per_tok": 2, "vocab_size": 512,
    "num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"],
    "num_attention_heads": 2, "num_key_value_heads": 1,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4,
}  # fmt: skip
BUCKET, NUM_SLOTS = 2, 4
GRAPHS_OF = 2
"""Members that the graphs are filed under; the group has one, who has all experts."""


class EagerPool:
    """Stands in for a GraphPool where there is no GPU."""

    def capture(self, forward: Callable[[], tuple[torch.Tensor, ...]]) -> tuple[Any, Any]:
        stepped = forward()

        class Graph:
            def replay(self) -> None:
                for kept, new in zip(stepped, forward(), strict=True):
                    kept.copy_(new)

        return Graph(), stepped


@torch.inference_mode()
def test_a_spread_step_has_the_bits_of_the_local_one(
    device: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device.type == "cpu":
        monkeypatch.setattr(graphs, "GraphPool", EagerPool)
        monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)
    config = smaller_config(tmp_path)
    layout = config.cache_layout("bfloat16", 64)
    model = build(config, torch.bfloat16, device)
    weights.draw(model.plan, 0)
    model.prepare()
    pools = PoolSize(NUM_SLOTS, NUM_SLOTS)
    memory = torch.zeros(Region.of(layout, pools).size_bytes, dtype=torch.uint8, device=device)
    cache = CacheTensors.over(memory, layout, pools)
    for tensor in (cache.kv, cache.conv, cache.recurrent):
        tensor.normal_(0, 0.1)
    kept = cache.conv.clone(), cache.recurrent.clone()
    local = TritonKernels(config, device, NUM_SLOTS)
    next_token = torch.arange(3, 3 + NUM_SLOTS, device=device)
    logits = torch.zeros(NUM_SLOTS, 512, device=device)
    steps = graphs.DecodeGraphs(model, cache, layout, local, next_token, logits, 128)
    steps.buckets = (BUCKET,)
    exchange = exchange_of(config, device)
    steps.capture()
    steps.capture_spread(GRAPHS_OF, (BUCKET,), SpreadKernels(local, exchange, 1))

    def outcome(launch: Callable[[int, list[Row]], graphs.Stepped]) -> list[torch.Tensor]:
        cache.conv.copy_(kept[0])
        cache.recurrent.copy_(kept[1])
        found = []
        for i in range(2):
            rows = [Row(0, (0,), 40 + i, None), Row(2, (1,), 20 + i, None)]
            found.append(launch(i, rows)[0].clone())
        return [*found, cache.conv.clone(), cache.recurrent.clone()]

    def launch_spread(i: int, rows: list[Row]) -> graphs.Stepped:
        exchange.begin_step(first_flag(1, 1 + i, len(config.layer_types)))
        return steps.launch_spread(GRAPHS_OF, BUCKET, rows)

    truth = outcome(lambda _, rows: steps.launch(rows))
    spread = outcome(launch_spread)
    assert exchange.header[0] == 0
    for ours, expected in zip(spread, truth, strict=True):
        assert expected.isfinite().all()
        assert torch.equal(ours, expected)


def smaller_config(folder: Path) -> ModelConfig:
    config = json.loads(FULL_SIZE.read_text())
    config["text_config"] |= SMALLER
    (folder / "config.json").write_text(json.dumps(config))
    return ModelConfig.read(folder).without_drafts()


def exchange_of(config: ModelConfig, device: torch.device) -> Exchange:
    """Of a group of one. Graphs are captured before it is joined, and steps then wait for nothing;
    here each launch computes anew, so it is joined at once."""
    layout = ExchangeLayout(BUCKET, config.num_experts_per_tok, config.hidden_size)
    memory = torch.empty(layout.size_bytes + HEADER_BYTES, dtype=torch.uint8, device=device)
    memory = memory[-memory.data_ptr() % HEADER_BYTES :][: layout.size_bytes]
    exchange = Exchange(layout, memory)
    exchange.join(1, [memory.data_ptr()], 0, limit_s=1.0)
    return exchange
