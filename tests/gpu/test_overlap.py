"""Prompts beside decode steps on a divided GPU: the same bits, and steps that go on."""

import random
from pathlib import Path

import pytest
import torch

from engine.batch import Binding, ForwardBatch, Row
from engine.multiprocessors import multiprocessors
from engine.runner import Engine
from tests.engine.compiled_kernels import small_engine
from tests.engine.overlapped import generate
from transport.wire.sampling import SamplingParams, StopRule

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

LONG = 6_000
"""Longer than prefill graphs: both ways compute the same pass, kernel by kernel."""


@pytest.fixture(scope="module", params=[0, 2], ids=["plain", "drafts"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    folder: Path = tmp_path_factory.mktemp("model")
    engine = small_engine(folder, "cuda", max_drafts=request.param, overlap="on")
    assert engine.overlap is not None
    return engine


def test_the_parts_have_all_multiprocessors(engine: Engine) -> None:
    assert engine.overlap is not None
    gpu = engine.overlap._gpu
    assert gpu is not None
    every = torch.cuda.get_device_properties().multi_processor_count
    assert engine.overlap.total == every
    assert len(gpu.divisions) == len(engine.overlap.shares) > 1
    for each in gpu.divisions:
        assert each.num_for_steps + each.num_for_prompts == every
        assert multiprocessors_of(each.steps) == each.num_for_steps
        assert multiprocessors_of(each.prompts) == each.num_for_prompts


def multiprocessors_of(stream: torch.cuda.Stream) -> int:
    with torch.cuda.stream(stream):
        return multiprocessors(torch.device("cuda"))


def test_tokens_are_those_of_a_prompt_before_the_steps(engine: Engine) -> None:
    assert engine.overlap is not None
    draw = random.Random(3)
    prompts = [tuple(draw.choices(range(1, 500), k=60 + 90 * i)) for i in range(8)]
    long = tuple(draw.choices(range(1, 500), k=LONG))
    before = generate(engine, prompts, long, beside=False)
    for share in 2 * engine.overlap.shares:
        assert generate(engine, prompts, long, beside=True, share=share) == before


def test_batches_in_different_divisions_run_one_behind_the_other(engine: Engine) -> None:
    """A prompt of two batches: the second reads what the first has left."""
    assert engine.overlap is not None
    draw = random.Random(4)
    prompt = tuple(draw.choices(range(1, 500), k=2 * 4096))
    pages = list(range(engine.layout.pages_for(len(prompt))))
    rows = [
        Row(0, pages, start, prompt[start : start + 4096], sample=start > 0) for start in (0, 4096)
    ]
    batches = [ForwardBatch((row,)) for row in rows]

    def bind() -> None:
        sampling = SamplingParams(temperature=1.0, seed=1)
        engine.bind(Binding(0, prompt, (), sampling, StopRule(1 << 20)))

    bind()
    before = [engine.launch(batch).result().sampled for batch in batches]
    shares = engine.overlap.shares
    for first, second in zip(shares, (*shares[1:], shares[0]), strict=True):
        bind()
        beside = [engine.overlapped(*each) for each in zip(batches, (first, second), strict=True)]
        assert [each.result().sampled for each in beside] == before
