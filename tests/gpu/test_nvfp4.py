"""Experts in NVFP4 on the GPU against float32 of the same weights: reduced depth, the real widths.

``values`` is checked by tests/kernels/sets/test_nvfp4_set.py.
"""

import json
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
import torch

from engine.model.matrix import Matrix, dequantise
from engine.model.packed_experts import PackedExperts
from engine.runner import Engine
from tests.gpu import references
from tests.gpu.teacher_forced import (
    Forced,
    alone_and_among,
    four_layers,
    kl,
    teacher_forced,
)

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

PROMPT_LENS = (1, 65, 600, 3000)
NUM_DECODED = 128
NUM_SLOTS = len(PROMPT_LENS) + 2
MAX_KL = 0.02


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps(four_layers()))
    return references.drawn(folder, NUM_SLOTS, "bfloat16", "nvfp4")


def values(weights: Any) -> Any:
    """The same weights with every matrix plain, and in float32."""
    match weights:
        case PackedExperts():
            return Matrix.of(weights.dequantised())
        case Matrix() if weights.packed is not None:
            packed = weights.packed.dequantised()[0]
            return Matrix.of(torch.cat((packed, weights.plain.float())))
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
    twin = references.drawn(engine.config.model_dir, NUM_SLOTS, "float32", "none")
    with torch.inference_mode():
        twin._model.weights = values(engine._model.weights)
    found = references.of_engine(twin, texts, PROMPT_LENS)
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
