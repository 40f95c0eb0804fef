"""The sizes by which the doctor says which models fit are those of the engine."""

from pathlib import Path

import pytest
import torch

from bench.sizes import CUDA_CONTEXT_BYTES, WEIGHTS
from deploy.known_models import (
    FEW_TOKENS,
    FEW_WORKING_BYTES,
    GIB,
    KNOWN,
    WORKING_BYTES,
    KnownModel,
    models_that_fit,
)
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
    for part, kept in (
        (gpu.GpuPart(), WORKING_BYTES),
        (gpu.GpuPart(max_prompt_tokens=FEW_TOKENS), FEW_WORKING_BYTES),
    ):
        needed = part.working_bytes + CUDA_CONTEXT_BYTES
        assert abs(needed - kept) < 0.01 * kept


def test_which_models_fit() -> None:
    names = "; ".join(f"{model.name} ({', '.join(model.weights)})" for model in KNOWN.values())
    assert models_that_fit(1 << 40).text.endswith(f"by --quantize: {names}")
    small = models_that_fit(48 * GIB)
    assert small.level == "ok"
    assert "Qwen3.5-35B-A3B (fp8, nvfp4, nvfp4-lm-head)" in small.text
    smaller = models_that_fit(24 * GIB)
    few = ", and with BATON_MAX_BATCH_TOKENS=512: Qwen3.5-35B-A3B (nvfp4-lm-head); "
    assert (smaller.level, few in smaller.text) == ("ok", True)
    assert models_that_fit(8 * GIB).level == "warn"


@pytest.mark.parametrize(
    ("gpu_gib", "formats"),
    [(79.6, ["nvfp4-lm-head"]), (140.4, ["fp8", "nvfp4", "nvfp4-lm-head"])],
)
def test_where_122_billion_parameters_fit(gpu_gib: float, formats: list[str]) -> None:
    """One H100, and one H200, where FP8 leaves room for the caches of eight requests."""
    assert KNOWN["qwen3.5-122b-a10b"].formats_for(int(gpu_gib * GIB)) == formats


@pytest.mark.parametrize("name", ["llama-3.1-8b", "qwen3.5-9b"])
def test_models_of_eight_billion_parameters_fit_24_gb_in_fp8(name: str) -> None:
    """Cards of 24 GB, such as an RTX 4090 or an L4, offer some 23.5 GiB; with --max-batch-tokens
    512."""
    assert "fp8" in KNOWN[name].formats_for(int(23.5 * GIB), FEW_WORKING_BYTES)
