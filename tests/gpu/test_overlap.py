"""Prompts beside decode steps on a divided GPU: the same bits, and steps that go on."""

import random
from pathlib import Path

import pytest
import torch

from engine.runner import Engine
from tests.engine.compiled_kernels import small_engine
from tests.engine.overlapped import generate

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

LONG = 6_000
"""Longer than prefill graphs: both ways compute the same pass, kernel by kernel."""


@pytest.fixture(scope="module", params=[0, 2], ids=["plain", "drafts"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    folder: Path = tmp_path_factory.mktemp("model")
    engine = small_engine(folder, "cuda", max_drafts=request.param, overlap=True)
    assert engine.overlap is not None
    return engine


def test_the_parts_have_all_multiprocessors(engine: Engine) -> None:
    assert engine.overlap is not None
    gpu = engine.overlap._gpu
    assert gpu is not None
    every = torch.cuda.get_device_properties().multi_processor_count
    assert gpu.num_for_steps + gpu.num_for_prompts == every


def test_tokens_are_those_of_a_prompt_before_the_steps(engine: Engine) -> None:
    draw = random.Random(3)
    prompts = [tuple(draw.choices(range(1, 500), k=60 + 90 * i)) for i in range(8)]
    long = tuple(draw.choices(range(1, 500), k=LONG))
    before = generate(engine, prompts, long, beside=False)
    for _ in range(3):
        assert generate(engine, prompts, long, beside=True) == before
