"""An engine with spread steps as it runs on CUDA: in a group of one, the tokens of local steps."""

import sys
from dataclasses import replace
from functools import partialmethod
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from engine import cuda_parts
from engine.batch import Binding, ForwardBatch, Row, SpreadPlan, StepResult
from engine.config import EngineConfig
from engine.kernels.triton_dot import INTERPRETED
from engine.runner import Engine
from engine.spread.engine_steps import EngineSpread
from engine.spread.interface import Lent
from engine.spread.lending import LendingSteps
from engine.spread.memory import UNKNOWN_MEMBER
from engine.spread.steps import SpreadSteps
from tests.kernels import cuda_path
from tests.kernels.spread_group import Memory
from transport.wire.sampling import SamplingParams, StopRule
from transport.wire.spread import ExchangeExport

pytestmark = [
    pytest.mark.skipif(not INTERPRETED, reason="for Triton's interpreter"),
    pytest.mark.timeout(400),
]

PROMPTS = ((5, 6, 7, 8), tuple(range(40, 60)))
SETTINGS = (SamplingParams(temperature=0.0), SamplingParams(temperature=0.8, seed=4))


def on_the_cpu(patch: pytest.MonkeyPatch) -> None:
    """Groups of few members, whose memory is in this process."""
    cuda_path.on_the_cpu(patch)
    for steps in (SpreadSteps, LendingSteps):
        patch.setattr(steps, "capture", partialmethod(steps.capture, sizes=[2]))
    patch.setattr(cuda_parts, "SPREAD_BUCKETS", (2,))
    patch.setattr(cuda_parts, "own_memory", lambda *_: Memory(torch.device("cpu")))
    opened = SimpleNamespace(open_handle=lambda handle, peer: int(handle), close_handle=id)
    patch.setitem(sys.modules, "transport.copy.cuda", opened)


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EngineConfig:
    on_the_cpu(monkeypatch)
    cuda_path.write_config(tmp_path)
    return EngineConfig(tmp_path, 2, 2, load_format="dummy", dtype="bfloat16", spread=True)


@pytest.fixture
def engine(settings: EngineConfig) -> Engine:
    return cuda_path.load(settings)


def start(engine: Engine) -> list[int | None]:
    for slot, prompt in enumerate(PROMPTS):
        engine.bind(Binding(slot, prompt, (), SETTINGS[slot], StopRule(99)))
    rows = tuple(Row(slot, (slot,), 0, prompt) for slot, prompt in enumerate(PROMPTS))
    return tokens_of(engine.launch(ForwardBatch(rows)).result())


def step(number: int) -> ForwardBatch:
    rows = (Row(s, (s,), len(prompt) + number, None) for s, prompt in enumerate(PROMPTS))
    return ForwardBatch(tuple(rows))


def tokens_of(result: StepResult) -> list[int | None]:
    return [each.token_id for row in result.sampled for each in row]


def test_a_spread_step_an_aborted_one_and_a_local_one(engine: Engine) -> None:
    truth = [start(engine), *(tokens_of(engine.launch(step(i)).result()) for i in range(2))]
    states = engine.cache.recurrent.clone(), engine.cache.conv.clone()
    spread = engine.spread
    assert isinstance(spread, EngineSpread)
    pending = engine._graphs._pending
    pending.fill_(1)
    assert start(engine) == truth[0]
    assert pending.tolist() == [0, 0], "of new sequences"
    spread.join(3, 0, [spread.export], 0)
    result = spread.launch(step(0), SpreadPlan(3, 1, 2, first=True)).result()
    assert tokens_of(result) == truth[1]
    assert pending.tolist() == [1, 1]
    spread.steps.exchange.header.fill_(UNKNOWN_MEMBER)
    assert spread.launch(step(1), SpreadPlan(3, 2, 2, first=False)).result().aborted
    assert pending.tolist() == [0, 0]
    assert tokens_of(engine.launch(step(1)).result()) == truth[2]
    assert torch.equal(engine.cache.recurrent, states[0])
    assert torch.equal(engine.cache.conv, states[1])


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
    assert lending.lend(SpreadPlan(3, 1, 2, first=True)) == Lent(took_part=False)
    lending.leave()
