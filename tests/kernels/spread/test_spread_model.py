"""Spread steps of a whole model, in a group of one, against local ones; and steps that abort."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import torch

from engine.batch import Binding, ForwardBatch, Row, SpreadPlan, StepResult
from engine.graphs.decode_graphs import DecodeGraphs, Trunk
from engine.graphs.graph_pool import GraphPool
from engine.kernels.triton_set import TritonKernels
from engine.loading import weights
from engine.model.config import ModelConfig
from engine.model.registry import build, read_config
from engine.sampling.sampler import Sampler
from engine.spread.engine_steps import EngineSpread
from engine.spread.group_memory import GroupMemory
from engine.spread.interface import MemberUnreachable
from engine.spread.member_steps import PlainSteps
from engine.spread.memory import UNKNOWN_MEMBER, ExchangeLayout
from engine.spread.shapes import SpreadShape
from engine.spread.steps import SpreadSteps
from engine.step import SampleRow, Step
from tests.kernels.sets import cuda_path
from tests.kernels.spread.spread_group import Memory
from transport.copy.region import Region
from transport.copy.tensors import CacheTensors
from transport.wire.errors import PeerGone
from transport.wire.layout import PoolSize
from transport.wire.sampling import SamplingParams, StopRule

FULL_SIZE = Path(__file__).parents[3] / "bench/models/qwen3.5-35b-a3b/config.json"
SMALLER = {
    "num_experts": 8, "num_experts_per_tok": 2, "vocab_size": 512,
    "moe_intermediate_size": 128, "shared_expert_intermediate_size": 128,
    "num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"],
    "num_attention_heads": 2, "num_key_value_heads": 1,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4,
}  # fmt: skip
BUCKET, NUM_SLOTS = 2, 4
pytestmark = pytest.mark.timeout(400)
NUM_STEPS = 3


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
        self.sampler = Sampler(NUM_SLOTS, 512, device)
        next_token = self.sampler.next_token
        for slot in (0, 2):
            greedy = SamplingParams(temperature=0.0)
            self.sampler.bind(Binding(slot, (3,), (4 + slot,), greedy, StopRule(99)))
        self.states = cache.conv, cache.recurrent, next_token
        self._first = [state.clone() for state in self.states]
        local = TritonKernels(config, device, NUM_SLOTS)
        logits = torch.zeros(NUM_SLOTS, 512, device=device)
        self.graphs = DecodeGraphs(
            Trunk(model, cache, layout, local, 128), next_token, logits, spreads=True
        )
        self.graphs.buckets = (BUCKET,)
        self.graphs.capture()
        for ring in self.graphs._rings:
            ring.inputs.fill_(float("nan"))
            ring.updates.fill_(float("nan"))
        exchanged = ExchangeLayout(BUCKET, config.moe.num_experts_per_tok, config.hidden_size)
        self.memory, self.other = Memory(device), Memory(device)
        self.other.allocate(exchanged.size_bytes).zero_()
        self.closed: list[int] = []
        group = GroupMemory(
            exchanged, self.memory, lambda handle: self.open_peer(handle), self.closed.append
        )
        self.steps = SpreadSteps(
            PlainSteps(self.graphs, self.sampler), local, group, len(config.layers),
            (SpreadShape(BUCKET),), limit_s=1.0,
        )  # fmt: skip
        self.steps.capture(sizes=[2])
        self.spread = EngineSpread(self.steps)

    @torch.inference_mode()
    def begin(self) -> None:
        """All is as it was first."""
        for state, first in zip(self.states, self._first, strict=True):
            state.copy_(first)
        for slot in range(NUM_SLOTS):
            self.graphs.forget(slot)
        self.open_peer: Callable[[str], int] = int
        self.closed.clear()

    def rows(self, step: int) -> list[Row]:
        return [Row(0, (0,), 40 + step, None), Row(2, (1,), 20 + step, None)]

    def batch(self, step: int) -> ForwardBatch:
        return ForwardBatch(tuple(self.rows(step)))

    def local(self, step: int) -> list[int]:
        """The tokens of a local step."""
        rows = self.rows(step)
        sampled = [SampleRow(row.state_slot, row.start + 1) for row in rows]
        found: list[int] = self.sampler.sample(*self.graphs.launch(rows), sampled).ids.tolist()
        return found

    def truth(self) -> tuple[list[list[int]], list[list[torch.Tensor]]]:
        """Of local steps: (the tokens of each, the states before the first and behind each)."""
        tokens, behind = [], [self.now()]
        for i in range(NUM_STEPS):
            tokens.append(self.local(i))
            behind.append(self.now())
        self.begin()
        return tokens, behind

    def now(self) -> list[torch.Tensor]:
        return [state.clone() for state in self.states]


def tokens_of(result: StepResult) -> list[int | None]:
    return [each.token_id for row in result.sampled for each in row]


@pytest.fixture(scope="module", params=["plain", "packed"])
def captured(
    device: torch.device, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Sequences]:
    """With weights in BF16, or with experts in NVFP4 and other matrices in FP8."""
    config, folder = json.loads(FULL_SIZE.read_text()), tmp_path_factory.mktemp("model")
    hidden_size = 512 if request.param == "packed" else 256
    config["text_config"] |= SMALLER | {"hidden_size": hidden_size}
    (folder / "config.json").write_text(json.dumps(config))
    torch.manual_seed(0)
    with pytest.MonkeyPatch.context() as patch:
        if device.type == "cpu":
            patch.setattr(GraphPool, "capture", cuda_path.capture)
            patch.setattr(torch.Tensor, "pin_memory", lambda self: self)
        with torch.inference_mode():
            model = read_config(folder).without_drafts()
            if request.param == "packed":
                model = model.rounded().packing()
            made = Sequences(model, device)
        yield made


@pytest.fixture
def sequences(captured: Sequences) -> Iterator[Sequences]:
    captured.begin()
    yield captured
    captured.spread.leave()


def assert_states(
    sequences: Sequences, before: list[torch.Tensor], fed: list[torch.Tensor]
) -> None:
    """Conv and recurrent states as in ``before``, the next tokens as in ``fed``."""
    for state, expected in zip(sequences.states, [*before[:-1], fed[-1]], strict=True):
        assert torch.equal(state, expected)


@torch.inference_mode()
def test_spread_steps_have_the_bits_of_local_ones_also_behind_aborted_ones(
    sequences: Sequences,
) -> None:
    tokens, behind = sequences.truth()
    spread, numbers = sequences.spread, iter(range(1, 99))
    spread.join(9, 0, [spread.export], 0)

    def launch(step: int, *, first: bool) -> Step:
        plan = SpreadPlan(9, next(numbers), BUCKET, first=first)
        return spread.launch(sequences.batch(step), plan)

    result = launch(0, first=True).result()
    assert (result.aborted, tokens_of(result), result.num_stored) == (False, tokens[0], 0)
    assert_states(sequences, behind[0], behind[1])
    # A step that is aborted, and one that was launched behind it.
    sequences.steps.exchange.header.fill_(UNKNOWN_MEMBER)
    for step in [launch(1, first=False), launch(2, first=False)]:
        result = step.result()
        assert (result.aborted, result.late) == (True, tuple(range(8)))
        assert result.sampled == ((), ())
    assert_states(sequences, behind[1], behind[1])
    assert tokens_of(launch(1, first=True).result()) == tokens[1]
    assert sequences.local(2) == tokens[2], "a local step applies what the spread one has left"
    assert_states(sequences, behind[3], behind[3])


@torch.inference_mode()
def test_steps_that_wait_for_a_dead_member_change_nothing(sequences: Sequences) -> None:
    before, spread = sequences.now(), sequences.spread
    other = msgspec.structs.replace(spread.export, handle=sequences.other.handle)
    spread.join(9, 0, [spread.export, other], 0)
    # A sequence that only takes part in the step behind loses nothing either.
    one = ForwardBatch(tuple(sequences.rows(0)[:1]))
    steps = [
        spread.launch(one, SpreadPlan(9, 1, BUCKET, first=True)),
        spread.launch(sequences.batch(0), SpreadPlan(9, 2, BUCKET, first=False)),
    ]
    for step in steps:
        result = step.result()
        assert (result.aborted, result.late) == (True, (1,))
    assert_states(sequences, before, before)
    assert not sequences.graphs._pending.any()
    spread.leave()
    assert sequences.closed == [int(sequences.other.handle)]


def test_a_member_that_cannot_be_mapped_is_named(sequences: Sequences) -> None:
    spread, opened = sequences.spread, []

    def open_peer(handle: str) -> int:
        if opened:
            raise PeerGone(f"no memory {handle}")
        opened.append(int(handle))
        return opened[0]

    sequences.open_peer = open_peer
    other = msgspec.structs.replace(spread.export, handle=sequences.other.handle)
    with pytest.raises(MemberUnreachable) as raised:
        spread.join(9, 1, [other, spread.export, other], 0)
    assert raised.value.rank == 2
    assert sequences.closed == opened, "no memory stays mapped"
