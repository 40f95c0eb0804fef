"""A worker's loop never waits for the GPU but where it asks for a step's result."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from engine.batch import Binding, ForwardBatch, Row
from engine.cache.publish import allocator_for
from engine.runner import Engine
from tests.engine.compiled_kernels import small_engine
from transport.wire.sampling import SamplingParams, StopRule

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    yield small_engine(tmp_path, "cuda")
    torch.cuda.set_sync_debug_mode("default")


SETTINGS = [
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=1.0, top_k=20, top_p=0.95),
    SamplingParams(temperature=1.0, presence_penalty=0.5, logit_bias={3: 1.0}),
]


@pytest.mark.parametrize("sampling", SETTINGS)
def test_admitting_launching_and_releasing_enqueue_only(
    engine: Engine, sampling: SamplingParams
) -> None:
    books = allocator_for(engine)
    torch.cuda.set_sync_debug_mode("error")
    holding = books.reserve(2)
    slot, pages = holding.slot.id, tuple(holding.pages)
    engine.bind(Binding(slot, (5, 6, 7), (8,), sampling, StopRule(9)))
    prompt = engine.launch(ForwardBatch((Row(slot, pages, 0, (5, 6, 7), sample=True),)))
    steps = [engine.launch(ForwardBatch((Row(slot, pages, 3 + i, None),))) for i in range(2)]
    books.release(holding)
    torch.cuda.set_sync_debug_mode("default")
    for step in (prompt, *steps):
        ((sampled,),) = step.result().sampled
        assert sampled.token_id is not None
