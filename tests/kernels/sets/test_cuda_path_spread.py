"""An engine with spread steps as it runs on CUDA: in a group of one, the tokens of local steps."""

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from engine import cuda_parts
from engine.batch import Binding, ForwardBatch, Row, Sampled, SpreadPlan
from engine.config import EngineConfig
from engine.kernels.triton_dot import INTERPRETED
from engine.runner import Engine
from engine.spread.engine_steps import EngineSpread
from engine.spread.interface import Lent
from engine.spread.memory import UNKNOWN_MEMBER
from tests.kernels.sets import cuda_path
from tests.kernels.spread.spread_group import Memory
from transport.wire.sampling import Constraint, SamplingParams, StopRule
from transport.wire.spread import ExchangeExport

pytestmark = [
    pytest.mark.skipif(not INTERPRETED, reason="for Triton's interpreter"),
    pytest.mark.timeout(400),
]

PROMPTS = ((5, 6, 7, 8), tuple(range(40, 60)))
THOUGHT = Constraint("", thought_end=9, thought_budget=2, closing_ids=(8, 9), answer_ids=(7,))
SETTINGS = (
    SamplingParams(temperature=0.0, logprobs=2, constraint=THOUGHT),
    SamplingParams(
        temperature=0.8, seed=4, presence_penalty=2.0, repetition_penalty=1.5, logit_bias={3: 2.0}
    ),
)
Outcomes = tuple[tuple[Sampled, ...], ...]
STOPS = (StopRule(99), StopRule(99, min_tokens=3, stop_token_ids=(3,)))


def on_the_cpu(patch: pytest.MonkeyPatch) -> None:
    """Groups whose members' memory is in this process."""
    cuda_path.on_the_cpu(patch)
    patch.setattr(cuda_parts, "own_memory", lambda *_: Memory(torch.device("cpu")))
    opened = SimpleNamespace(open_handle=lambda handle, peer: int(handle), close_handle=id)
    patch.setitem(sys.modules, "transport.copy.cuda", opened)


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EngineConfig:
    on_the_cpu(monkeypatch)
    cuda_path.widen_tiles(monkeypatch)
    cuda_path.write_config(tmp_path)
    return EngineConfig(
        tmp_path,
        2,
        2,
        load_format="dummy",
        dtype="bfloat16",
        spread=True,
        decode_buckets=(2,),
        group_sizes=(2,),
    )


@pytest.fixture
def engine(settings: EngineConfig) -> Engine:
    return cuda_path.load(settings)


def start(engine: Engine) -> Outcomes:
    for slot, prompt in enumerate(PROMPTS):
        engine.bind(Binding(slot, prompt, (), SETTINGS[slot], STOPS[slot]))
    rows = tuple(Row(slot, (slot,), 0, prompt) for slot, prompt in enumerate(PROMPTS))
    return engine.launch(ForwardBatch(rows)).result().sampled


def step(number: int) -> ForwardBatch:
    rows = (Row(s, (s,), len(prompt) + number, None) for s, prompt in enumerate(PROMPTS))
    return ForwardBatch(tuple(rows))


def test_spread_steps_with_aborted_ones_between_and_a_local_one(engine: Engine) -> None:
    truth = [start(engine), *(engine.launch(step(i)).result().sampled for i in range(3))]
    counts = engine._sampler.tables.counts.values
    assert counts is not None
    states = engine.cache.recurrent, engine.cache.conv
    behind = [each.clone() for each in (*states, counts[1])]
    spread = engine.spread
    assert isinstance(spread, EngineSpread)
    pending = engine._graphs._pending
    pending.fill_(1)
    assert start(engine) == truth[0]
    assert pending.tolist() == [0, 0], "of new sequences"
    spread.join(3, 0, [spread.export], 0)
    result = spread.launch(step(0), SpreadPlan(3, 1, 2, first=True)).result()
    assert result.sampled == truth[1]
    assert pending.tolist() == [1, 1]
    spread.steps.exchange.header.fill_(UNKNOWN_MEMBER)
    before = counts.clone()
    steps = [spread.launch(step(i), SpreadPlan(3, 1 + i, 2, first=False)) for i in (1, 2)]
    assert all(each.result().aborted for each in steps)
    assert pending.tolist() == [0, 0]
    assert torch.equal(counts, before)
    assert spread.launch(step(1), SpreadPlan(3, 4, 2, first=True)).result().sampled == truth[2]
    assert engine.launch(step(2)).result().sampled == truth[3]
    for found, expected in zip((*states, counts[1]), behind, strict=True):
        assert torch.equal(found, expected)


def test_prompts_between_two_spread_steps_change_nothing(settings: EngineConfig) -> None:
    engine = cuda_path.load(replace(settings, num_pages=3, num_state_slots=3))
    prompt, sampling = tuple(range(60, 70)), SamplingParams(temperature=0.0)
    other = ForwardBatch((Row(2, (2,), 0, prompt),))

    def bind_other() -> None:
        engine.bind(Binding(2, prompt, (), sampling, StopRule(99)))

    truth = [start(engine), *(engine.launch(step(i)).result().sampled for i in range(3))]
    bind_other()
    first = engine.launch(other).result().sampled
    spread = engine.spread
    assert isinstance(spread, EngineSpread)
    assert start(engine) == truth[0]
    bind_other()
    spread.join(3, 0, [spread.export], 0)
    before = spread.launch(step(0), SpreadPlan(3, 1, 2, first=True))
    behind = engine.launch(other)
    assert (before.result().sampled, behind.result().sampled) == (truth[1], first)
    after = [spread.launch(step(i), SpreadPlan(3, 2 + i, 2, first=i == 1)) for i in (1, 2)]
    assert [each.result().sampled for each in after] == truth[2:]


def test_an_engine_that_prefills_lends_and_does_not_spread(settings: EngineConfig) -> None:
    engine = cuda_path.load(replace(settings, decodes=False))
    assert engine.spread is None
    lending = engine.lending
    assert lending is not None
    first = Memory(torch.device("cpu"))
    first.allocate(lending.export.size_bytes).zero_()
    own = lending.export
    other = ExchangeExport(own.kind, first.handle, own.size_bytes)
    lending.join(3, 1, [other, own], 1)
    assert lending.lend(SpreadPlan(3, 1, 2, first=True)).result() == Lent(took_part=False)
    lending.leave()
