"""The sizes by which the doctor says which models fit are those of the engine."""

from pathlib import Path

import pytest
import torch

from bench.sizes import CUDA_CONTEXT_BYTES, WEIGHTS
from deploy.known_models import GIB, KNOWN, WORKING_BYTES, KnownModel, models_that_fit
from engine import gpu
from engine.model.registry import build, read_config

MODELS = Path(__file__).parents[2] / "bench/models"
FORMATS = {"none": "BF16", "fp8": "FP8", "nvfp4": "NVFP4", "nvfp4-lm-head": "NVFP4, lm_head too"}


def test_each_model_whose_configuration_is_here_is_known() -> None:
    assert KNOWN.keys() == {folder.name for folder in MODELS.iterdir() if folder.is_dir()}


@pytest.mark.parametrize(("folder", "model"), KNOWN.items())
def test_the_sizes_are_those_of_the_engine(folder: str, model: KnownModel) -> None:
    config = read_config(MODELS / folder).without_drafts()
    layout = config.cache_layout("bfloat16", 64)
    assert model.token_bytes == layout.page_bytes // 64
    assert model.state_bytes == layout.state_slot_bytes
    for name, num_bytes in model.weights.items():
        weights = build(WEIGHTS[FORMATS[name]](config), torch.bfloat16, torch.device("meta"))
        assert weights.num_bytes == num_bytes, name


def test_what_the_engine_works_in_is_left_free() -> None:
    needed = gpu.ACTIVATIONS_BYTES + CUDA_CONTEXT_BYTES
    assert abs(needed - WORKING_BYTES) < 0.01 * WORKING_BYTES


def test_which_models_fit() -> None:
    assert models_that_fit(140 * GIB).text.endswith(
        "by --quantize: Qwen3.5-35B-A3B (none, fp8, nvfp4, nvfp4-lm-head); Qwen3.5-9B (none, "
        "fp8); Qwen3-30B-A3B (none, fp8, nvfp4, nvfp4-lm-head); Llama-3.1-8B (none, fp8)"
    )
    small = models_that_fit(48 * GIB)
    assert small.level == "ok"
    assert "Qwen3.5-35B-A3B (fp8, nvfp4, nvfp4-lm-head)" in small.text
    assert models_that_fit(16 * GIB).level == "warn"
