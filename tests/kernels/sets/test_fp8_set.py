"""The Triton kernel set over a model in FP8: its values, and what kernels hand to one another."""

from pathlib import Path

import pytest
import torch

from engine.batch import Row
from engine.config import EngineConfig
from engine.inputs import Inputs
from engine.kernels.dense import triton_linear
from engine.kernels.interface import Kernels
from engine.kernels.triton_dot import INTERPRETED
from engine.kernels.triton_set import TritonKernels
from engine.model.model import finished
from engine.model.registry import read_config
from engine.runner import Engine
from tests.kernels.closeness import relative_error
from tests.kernels.sets import cuda_path

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="for Triton's interpreter")

PROMPTS = (tuple(range(40, 47)), (5, 6, 7))
NEW = torch.tensor([11, 12])


PREFILL = [Row(i, (i,), 0, prompt) for i, prompt in enumerate(PROMPTS)]
DECODE = [Row(i, (i,), len(prompt), None) for i, prompt in enumerate(PROMPTS)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    cuda_path.write_config(tmp_path, hidden_size=512)
    cuda_path.widen_tiles(monkeypatch)
    return tmp_path


def loaded(folder: Path, kernels: Kernels | None = None) -> Engine:
    settings = EngineConfig(
        folder, 4, 4, load_format="dummy", dtype="bfloat16", quantize="fp8", poison=True
    )
    return Engine.load(settings, lambda n: torch.zeros(n, dtype=torch.uint8), kernels=kernels)


@pytest.fixture
def engine(folder: Path) -> Engine:
    kernels = TritonKernels(read_config(folder).quantised(), torch.device("cpu"), 4)
    return loaded(folder, kernels)


def forward(engine: Engine, rows: list[Row]) -> torch.Tensor:
    """Hidden rows of the decode rows' tokens, ``NEW``, and of the prompts'."""
    inputs = Inputs.of(tuple(rows), engine.layout, torch.device("cpu"))
    ids = torch.cat((NEW[: inputs.num_decode], inputs.prefill_ids))
    with torch.inference_mode():
        return finished(
            engine._model.forward(inputs, ids, engine.cache, engine._kernels, every_token=True)
        )


def test_values_are_those_of_pytorch(engine: Engine, folder: Path) -> None:
    reference = loaded(folder)
    for rows in (PREFILL, DECODE):
        assert relative_error(forward(engine, rows), forward(reference, rows)) < 0.03


def test_mixers_split_what_decode_projects(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """No kernel of its own does; beside a prompt one does, with the same bits."""
    forward(engine, PREFILL)
    num_split = 0
    plain = triton_linear.split_rows

    def counted(x: torch.Tensor, num_groups: int = 1) -> triton_linear.Split:
        nonlocal num_split
        num_split += 1
        return plain(x, num_groups)

    monkeypatch.setattr(triton_linear, "split_rows", counted)
    kept = engine.cache.kv, engine.cache.conv, engine.cache.recurrent
    before = [each.clone() for each in kept]

    def again(rows: list[Row]) -> torch.Tensor:
        for each, was in zip(kept, before, strict=True):
            each.copy_(was)
        return forward(engine, rows)

    alone = again(DECODE)
    assert num_split == 0
    beside = again([*DECODE, Row(2, (2,), 0, (9, 8, 7, 6))])
    assert num_split > 0
    assert torch.equal(alone, beside[:2])
    assert alone.isfinite().all()
