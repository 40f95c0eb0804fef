"""``--quantize nvfp4`` and ``dequantize``: what becomes of weights as they are loaded."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.config import EngineConfig
from engine.loading import checkpoint as checkpoints
from engine.loading import weights
from engine.loading.model_folder import read_model
from engine.model.matrix import Matrix, quantise
from engine.model.quantization import BLOCK
from engine.model.registry import build, read_config
from engine.model.weights import MoeWeights
from engine.quantized.nvfp4 import rounded
from tests.engine.checkpoints import KEPT_IN_BF16, checkpoint, reference, write_checkpoint
from tests.engine.driver import load_engine
from tests.engine.loading.test_fp8_weights import answer, fp8_copy, matrices, plain_checkpoint
from tests.engine.quantized.test_formats import loaded, written
from tests.gpu.test_bundled_model import MODELS, answers


def in_fp8(matrix: torch.Tensor) -> torch.Tensor:
    """The values that blocks in FP8 give a matrix."""
    values, scales = quantise(matrix)
    wide = scales.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
    return values.float() * wide[: matrix.shape[0], : matrix.shape[1]]


@pytest.mark.parametrize("name", ["per_expert", "odd", "qwen3_next-odd"])
def test_nvfp4_at_load_rounds_experts_and_makes_the_rest_fp8(name: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(plain_checkpoint(name), tmp_path / "rounded"))
    tensors = load_file(folder / "model.safetensors")
    for key, tensor in tensors.items():
        module = key.removesuffix(".weight")
        if tensor.dim() != 2 or module.endswith(KEPT_IN_BF16):
            continue
        if ".experts." in key:
            tensors[key] = rounded(tensor).contiguous()
        else:
            tensors[key] = in_fp8(tensor)
    save_file(tensors, folder / "model.safetensors")
    assert answer(plain_checkpoint(name), quantize="nvfp4") == answer(folder)


def test_the_bundled_model_answers_with_nvfp4s_values() -> None:
    lines = (MODELS / "heldout.jsonl").read_text().splitlines()
    problems = [json.loads(line) for line in lines[:24]]
    found = answers("cpu", "float32", problems, quantize="nvfp4")
    finals = [f"#### {problem['final']}" for problem in problems]
    assert [answer.splitlines()[-1] for answer in found] == finals


def test_experts_fused_and_apart_are_rounded_alike(tmp_path: Path) -> None:
    write_checkpoint(reference("per_expert"), tmp_path, "fused")
    models = []
    for folder in (tmp_path, checkpoint("per_expert")):
        models.append(build(read_config(folder).rounded(), torch.float32, torch.device("cpu")))
        weights.load(models[-1].plan, checkpoints.read_entries(folder))
    for fused, apart in zip(*map(matrices, models), strict=True):
        assert torch.equal(fused.plain, apart.plain)


def test_dummy_weights_are_rounded_too() -> None:
    plain, made = (
        load_engine(checkpoint("per_expert"), load_format="dummy", quantize=quantize)
        for quantize in ("none", "nvfp4")
    )
    assert plain.fingerprint != made.fingerprint
    drawn, ours = (engine._model.weights.layers[0].mlp for engine in (plain, made))
    assert isinstance(drawn, MoeWeights)
    assert isinstance(ours, MoeWeights)
    assert isinstance(drawn.down, Matrix)
    assert isinstance(ours.down, Matrix)
    for values, made_values in zip(drawn.down.plain, ours.down.plain, strict=True):
        assert torch.equal(made_values, rounded(values))


def test_nvfp4_needs_weights_that_are_not_quantised(tmp_path: Path) -> None:
    for folder, name in (
        (written("awq", tmp_path)[0], r"int4 \(AWQ\)"),
        (fp8_copy("per_expert", tmp_path)[0], "FP8 in blocks"),
    ):
        with pytest.raises(ValueError, match=f"quantize: nvfp4 needs .* not {name}"):
            load_engine(folder, quantize="nvfp4")
    config = EngineConfig(checkpoint("per_expert"), None, None, device="cuda", quantize="nvfp4")
    with pytest.raises(ValueError, match=r"quantize: nvfp4 on a GPU takes a model .*, not hidden"):
        read_model(config)


@pytest.mark.parametrize("name", ["per_expert", "fused"])
def test_fp8_blocks_can_be_dequantised_at_load(name: str, tmp_path: Path) -> None:
    folder, meant = fp8_copy(name, tmp_path)
    values = Path(shutil.copytree(checkpoint(name), tmp_path / "values"))
    save_file(meant, values / "model.safetensors")
    config = read_config(folder).dequantised()
    model = build(config, torch.float32, torch.device("cpu"))
    weights.load(model.plan, checkpoints.read_entries(folder), stored=config.stored)
    for ours, theirs in zip(matrices(model), matrices(loaded(values)), strict=True):
        assert ours.num_fp8 == 0
        assert torch.equal(ours.plain, theirs.plain)
    assert answer(folder, quantize="dequantize") == answer(values)


def test_other_formats_can_become_fp8_at_load(tmp_path: Path) -> None:
    folder, values = written("modelopt", tmp_path)
    assert answer(folder, quantize="fp8") == answer(values, quantize="fp8")
    assert answer(folder, quantize="dequantize") == answer(values)
