"""What tests of a module's own ``engine`` share."""

from collections.abc import Iterator

import pytest
import torch

from engine.runner import Engine
from tests.gpu.teacher_forced import VOCAB, Forced


@pytest.fixture(scope="module")
def texts(request: pytest.FixtureRequest) -> list[list[int]]:
    """Random ids: for each of the module's PROMPT_LENS that many, and NUM_DECODED more."""
    generator = torch.Generator().manual_seed(1)
    lengths = [length + request.module.NUM_DECODED for length in request.module.PROMPT_LENS]
    return [torch.randint(0, VOCAB, (n,), generator=generator).tolist() for n in lengths]


@pytest.fixture
def forced(engine: Engine) -> Iterator[Forced]:
    found = Forced(engine)
    yield found
    found.close()


@pytest.fixture(params=["graphs", "kernel by kernel"])
def graphs(engine: Engine, request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether short prefill passes run as graphs."""
    captured = engine._prefill_graphs
    if request.param != "graphs":
        engine._prefill_graphs = None
    yield request.param == "graphs"
    engine._prefill_graphs = captured
