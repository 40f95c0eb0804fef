"""Experts in NVFP4 on the GPU against float32 of the same weights: reduced depth, the real widths.

Not run on a GPU yet; ``values`` is checked by tests/kernels/test_nvfp4_set.py.
"""

import json
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from engine.batch import Row
from engine.config import EngineConfig, Quantize
from engine.inputs import Inputs
from engine.kernels.reference import ReferenceKernels
from engine.model.matrix import Matrix, dequantise
from engine.model.nvfp4_experts import Nvfp4Experts
from engine.runner import Engine
from tests.gpu.teacher_forced import (
    PAGES_EACH,
    Forced,
    alone_and_among,
    four_layers,
    kl,
    pages,
    teacher_forced,
)

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

PROMPT_LENS = (1, 65, 600, 3000)
NUM_DECODED = 128
MAX_KL = 0.02


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps(four_layers()))
    return load(folder, "bfloat16", "nvfp4")


def load(folder: Path, dtype: Literal["float32", "bfloat16"], quantize: Quantize) -> Engine:
    config = EngineConfig(
        folder, PAGES_EACH * (len(PROMPT_LENS) + 2), len(PROMPT_LENS) + 2, load_format="dummy",
        device="cuda", dtype=dtype, quantize=quantize, poison=True,
    )  # fmt: skip
    kernels = ReferenceKernels() if dtype == "float32" else None
    return Engine.load(
        config, lambda n: torch.empty(n, dtype=torch.uint8, device="cuda"), kernels=kernels
    )


def values(weights: Any) -> Any:
    """The same weights with every matrix plain, and in float32."""
    match weights:
        case Nvfp4Experts():
            return Matrix.of(weights.dequantised())
        case Matrix():
            fp8 = dequantise(weights.fp8, weights.scales, weights.group)
            return Matrix.of(torch.cat((fp8, weights.plain.float()), dim=-2))
        case torch.Tensor():
            return weights.float() if weights.is_floating_point() else weights
        case tuple():
            return tuple(values(each) for each in weights)
    if not is_dataclass(weights) or isinstance(weights, type):
        return weights
    return replace(weights, **{f.name: values(getattr(weights, f.name)) for f in fields(weights)})


@pytest.fixture(scope="module")
def reference(engine: Engine, texts: list[list[int]]) -> list[torch.Tensor]:
    """float32 logits of the same weights at the positions that our engine samples."""
    twin = load(engine.config.model_dir, "float32", "none")
    found = []
    with torch.inference_mode():
        twin._model.weights = values(engine._model.weights)
        for slot, (text, length) in enumerate(zip(texts, PROMPT_LENS, strict=True)):
            row = Row(slot, pages(slot), 0, tuple(text[:-1]))
            inputs = Inputs.of((row,), twin.layout, torch.device("cuda"))
            index = torch.arange(length - 1, len(text) - 1, device="cuda")
            inputs = replace(inputs, sample_index=index)
            hidden = twin._model.forward(inputs, inputs.prefill_ids, twin.cache, twin._kernels)
            found.append(twin._model.logits(hidden, twin.num_ids, twin._kernels))
    del twin
    torch.cuda.empty_cache()
    return found


def test_teacher_forced_logits(
    forced: Forced, texts: list[list[int]], reference: list[torch.Tensor]
) -> None:
    ours = teacher_forced(forced, texts, NUM_DECODED)
    kls = [
        kl(theirs, own[:, : theirs.shape[1]]) for theirs, own in zip(reference, ours, strict=True)
    ]
    mean = torch.cat(kls).mean()
    print(f"mean KL {mean:.5f}, by prompt {[f'{each.mean():.5f}' for each in kls]}")
    assert mean <= MAX_KL


def test_a_decode_row_does_not_depend_on_its_batch(forced: Forced, texts: list[list[int]]) -> None:
    prompt = texts[PROMPT_LENS.index(65)][:65]
    alone, among = alone_and_among(forced, prompt, texts)
    assert torch.equal(alone, among)
