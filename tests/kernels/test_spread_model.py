"""Spread steps of a whole model, in a group of one, against local ones; and steps taken back."""

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
from engine.spread.memory import HEADER_BYTES, UNKNOWN_MEMBER, ExchangeLayout
from engine.spread.steps import SpreadSteps
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


class EagerPool:
    """Stands in for a GraphPool where there is no GPU."""

    def capture(self, forward: Callable[[], tuple[torch.Tensor, ...]]) -> tuple[Any, Any]:
        stepped = forward()

        class Graph:
            def replay(self) -> None:
                for kept, new in zip(stepped, forward(), strict=True):
                    kept.copy_(new)

        return Graph(), stepped


class Memory:
    """An OwnMemory that no other process opens; its handle is its address."""

    kind = "shm"

    def __init__(self, device: torch.device) -> None:
        self._device = device

    @property
    def handle(self) -> str:
        return str(self._memory.data_ptr())

    @property
    def size_bytes(self) -> int:
        return len(self._memory)

    def allocate(self, size_bytes: int) -> torch.Tensor:
        memory = torch.empty(size_bytes + HEADER_BYTES, dtype=torch.uint8, device=self._device)
        self._memory = memory[-memory.data_ptr() % HEADER_BYTES :][:size_bytes]
        return self._memory

    def lost(self) -> str:
        return ""

    def close(self) -> None:
        pass


class Sequences:
    """Two sequences in a small model, and the spread steps of one member."""

    def __init__(self, config: ModelConfig, device: torch.device) -> None:
        layout = config.cache_layout("bfloat16", 64)
        model = build(config, torch.bfloat16, device)
        weights.draw(model.plan, 0)
        model.prepare()
        pools = PoolSize(NUM_SLOTS, NUM_SLOTS)
        memory = torch.zeros(Region.of(layout, pools).size_bytes, dtype=torch.uint8, device=device)
        cache = CacheTensors.over(memory, layout, pools)
        for tensor in (cache.kv, cache.conv, cache.recurrent):
            tensor.normal_(0, 0.1)
        next_token = torch.arange(3, 3 + NUM_SLOTS, device=device)
        self.states = cache.conv, cache.recurrent, next_token
        self._kept = [state.clone() for state in self.states]
        local = TritonKernels(config, device, NUM_SLOTS)
        logits = torch.zeros(NUM_SLOTS, 512, device=device)
        self.graphs = graphs.DecodeGraphs(model, cache, layout, local, next_token, logits, 128)
        self.graphs.buckets = (BUCKET,)
        self.graphs.capture()
        exchanged = ExchangeLayout(BUCKET, config.num_experts_per_tok, config.hidden_size)
        self.memory, self.other = Memory(device), Memory(device)
        self.other.allocate(exchanged.size_bytes).zero_()
        self.closed: list[int] = []
        self.steps = SpreadSteps(
            self.graphs, local, exchanged, len(config.layer_types), self.memory, self.states,
            (BUCKET,), limit_s=1.0, open_peer=int, close_peer=self.closed.append,
        )  # fmt: skip

    def begin(self) -> None:
        for state, kept in zip(self.states, self._kept, strict=True):
            state.copy_(kept)

    def rows(self, step: int) -> list[Row]:
        return [Row(0, (0,), 40 + step, None), Row(2, (1,), 20 + step, None)]

    def two_steps(self, launch: Callable[[int, list[Row]], graphs.Stepped]) -> list[torch.Tensor]:
        """Logits and states. The fed token rises, as if it had been sampled."""
        found = []
        for i in range(2):
            found.append(launch(i, self.rows(i))[0].clone())
            self.states[2].add_(1)
        return [*found, *(state.clone() for state in self.states)]

    def local(self) -> list[torch.Tensor]:
        return self.two_steps(lambda _, rows: self.graphs.launch(rows))


@pytest.fixture
def sequences(device: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sequences:
    if device.type == "cpu":
        monkeypatch.setattr(graphs, "GraphPool", EagerPool)
        monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)
    config = json.loads(FULL_SIZE.read_text())
    config["text_config"] |= SMALLER
    (tmp_path / "config.json").write_text(json.dumps(config))
    with torch.inference_mode():
        return Sequences(ModelConfig.read(tmp_path).without_drafts(), device)


def assert_equal(found: list[torch.Tensor], truth: list[torch.Tensor]) -> None:
    for ours, expected in zip(found, truth, strict=True):
        assert expected.isfinite().all()
        assert torch.equal(ours, expected)


@torch.inference_mode()
def test_spread_steps_have_the_bits_of_local_ones_also_after_an_aborted_one(
    sequences: Sequences,
) -> None:
    truth, steps = sequences.local(), sequences.steps
    sequences.begin()
    steps.join(1, 0, [sequences.memory.handle])
    steps.exchange.header[0] = UNKNOWN_MEMBER
    steps.launch(sequences.rows(0), 1, BUCKET)
    assert steps.read(steps.outcome(sequences.rows(0))) == (True, ())
    steps.take_back()
    found = sequences.two_steps(lambda i, rows: steps.launch(rows, 7 + i, BUCKET))
    assert_equal(found, truth)
    assert steps.read(steps.outcome(sequences.rows(1))) == (False, ())


@torch.inference_mode()
def test_an_aborted_step_is_taken_back_with_those_behind_it(sequences: Sequences) -> None:
    truth, steps = sequences.local(), sequences.steps
    sequences.begin()
    steps.join(1, 0, [sequences.memory.handle, sequences.other.handle])
    first, second = sequences.rows(0)
    outcomes = []
    # A sequence that only takes part in the step behind loses nothing either.
    for round_, rows in ((1, [first]), (2, [first, second])):
        steps.launch(rows, round_, BUCKET)
        for row in rows:
            sequences.states[2][row.state_slot] += 100
        outcomes.append(steps.outcome(rows))
    assert [steps.read(outcome) for outcome in outcomes] == [(True, (1,))] * 2
    steps.take_back()
    steps.leave()
    assert sequences.closed == [int(sequences.other.handle)]
    assert_equal(sequences.local(), truth)
