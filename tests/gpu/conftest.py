"""What tests of a module's own ``checkpoint`` or ``engine`` share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from engine.runner import Engine
from tests.gpu import references
from tests.gpu.teacher_forced import VOCAB, Forced


@pytest.fixture(scope="module")
def texts(request: pytest.FixtureRequest) -> list[list[int]]:
    """Random ids: for each of the module's PROMPT_LENS that many, and NUM_DECODED more."""
    generator = torch.Generator().manual_seed(1)
    lengths = [length + request.module.NUM_DECODED for length in request.module.PROMPT_LENS]
    return [torch.randint(0, VOCAB, (n,), generator=generator).tolist() for n in lengths]


@pytest.fixture(scope="module")
def reference(
    checkpoint: Path, texts: list[list[int]], request: pytest.FixtureRequest
) -> list[torch.Tensor]:
    """transformers' float32 logits at the positions that our engine samples."""
    found = references.of_transformers(checkpoint, texts, request.module.PROMPT_LENS)
    torch.cuda.empty_cache()
    return found


@pytest.fixture(scope="module")
def engine(
    checkpoint: Path, reference: list[torch.Tensor], request: pytest.FixtureRequest
) -> Engine:
    """The engine of the module's checkpoint, with room for its texts and two more; loaded when
    transformers' model has left the GPU."""
    return references.loaded(checkpoint, len(request.module.PROMPT_LENS) + 2)


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
