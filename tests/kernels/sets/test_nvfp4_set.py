"""The Triton kernel set over a model with experts in NVFP4, against their values in PyTorch."""

import json
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from engine.batch import Row
from engine.config import EngineConfig, Quantize
from engine.inputs import Inputs
from engine.kernels.experts import triton_moe
from engine.kernels.triton_dot import INTERPRETED
from engine.kernels.triton_set import TritonKernels
from engine.loading import model_folder, parts
from engine.model.matrix import Matrix
from engine.model.model import finished
from engine.model.packed_experts import PackedExperts
from engine.model.registry import build, read_config
from engine.model.weights import MoeWeights
from engine.runner import Engine
from tests.engine.driver import GREEDY, Driver, Request
from tests.engine.quantized import checkpoints
from tests.examples import combinations
from tests.gpu.test_nvfp4 import values
from tests.kernels.sets import cuda_path
from tests.kernels.sets.test_cuda_path_families import write_config

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="for Triton's interpreter")

PROMPTS = (tuple(range(40, 61)), (5, 6, 7))
NUM_TOKENS = 2  # a prompt's, and that of a decode step
NUM_TOKENS_WITH_DRAFTS = 3
VOCAB = 576  # a multiple of 64, so that lm_head can be in NVFP4


def groups(form: str, **weights: Any) -> dict[str, Any]:
    """What a configuration of compressed-tensors says of weights, and its method."""
    scheme = {"config_groups": {"group_0": {"weights": weights}}}
    return {"quant_method": "compressed-tensors", "format": form} | scheme


AWQ = {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True}
INT8 = groups("pack-quantized", num_bits=8, type="int", strategy="channel", symmetric=True)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """A checkpoint of random weights, its experts one by one."""
    plain, hidden_size = tmp_path / "plain", getattr(request, "param", 256)
    plain.mkdir()
    cuda_path.write_config(plain, vocab_size=VOCAB, num_experts=4, hidden_size=hidden_size)
    drawn_checkpoint(plain)
    monkeypatch.setattr(triton_moe, "MAX_UNPACKED_TOKENS", 16)
    cuda_path.widen_tiles(monkeypatch)
    cuda_path.few_programs(monkeypatch)
    return plain


FP8_TOO = pytest.mark.parametrize("folder", [512], indirect=True)
"""Matrices that are made FP8 at load have so many columns at least."""


def settings(folder: Path) -> EngineConfig:
    return EngineConfig(folder, 8, 2, dtype="float32")


def answers(engine: Engine, num_tokens: int = NUM_TOKENS, num_drafts: int = 0) -> list[list[int]]:
    requests = [Request(prompt, num_tokens, GREEDY) for prompt in PROMPTS]
    Driver(engine, num_drafts=lambda: num_drafts).run(requests)
    return [request.tokens for request in requests]


def loaded(config: EngineConfig, kernels: TritonKernels | None = None) -> Engine:
    return Engine.load(config, lambda n: torch.zeros(n, dtype=torch.uint8), kernels=kernels)


def logits_of(engine: Engine) -> torch.Tensor:
    row = Row(0, tuple(range(4)), 0, PROMPTS[0])
    inputs = Inputs.of((row,), engine.layout, torch.device("cpu"))
    hidden = finished(
        engine._model.forward(inputs, inputs.prefill_ids, engine.cache, engine._kernels)
    )
    return engine._model.logits(hidden, engine.num_ids, engine._kernels)


def drawn_checkpoint(folder: Path) -> None:
    """Write random weights for the ``config.json`` in ``folder``, experts one by one."""
    plan = build(read_config(folder), torch.float32, torch.device("meta")).plan
    torch.manual_seed(0)
    shapes = {name: target.shape for name, target in plan.targets.items()}
    for whole, split in plan.split.items():
        del shapes[whole]
        shapes |= {name: part().shape for name, part in split.items()}
    tensors = {name: torch.randn(shape) * shape[-1] ** -0.5 for name, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors")


def as_on_a_gpu(config: EngineConfig, patch: pytest.MonkeyPatch) -> Engine:
    """An engine on the CPU with the weights and the kernels of one on CUDA."""
    read: Callable[..., object] = model_folder.read_model
    patch.setattr(model_folder, "unsupported", lambda *_: "")
    patch.setattr(parts, "read_model", lambda own: read(replace(own, device="cuda")))
    model, _ = parts.read_model(config)
    engine = loaded(config, TritonKernels(model, torch.device("cpu"), 4))
    for layer in engine._model.weights.layers:
        if isinstance(layer.mlp, MoeWeights):
            assert isinstance(layer.mlp.gate_up, PackedExperts)
            assert isinstance(layer.mlp.down, PackedExperts)
    return engine


@FP8_TOO
@pytest.mark.parametrize("quantize", ["nvfp4", "nvfp4-lm-head"])
def test_weights_made_at_load_give_the_tokens_of_their_values(
    quantize: Quantize, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(settings(folder), quantize=quantize)
    # The other matrices are in FP8: both engines compute with them in the same way.
    truth = loaded(config, TritonKernels(read_config(folder).rounded(), torch.device("cpu"), 4))
    engine = as_on_a_gpu(config, monkeypatch)
    assert (engine._model.weights.lm_head.packed is not None) == (quantize == "nvfp4-lm-head")
    assert truth._model.weights.lm_head.packed is None
    assert engine.fingerprint == truth.fingerprint
    assert answers(engine) == answers(truth)


def packed_matrices(weights: Any) -> list[Matrix]:
    """The matrices among ``weights`` that have rows in NVFP4."""
    if isinstance(weights, Matrix):
        return [weights] if weights.packed is not None else []
    if isinstance(weights, tuple):
        return [found for each in weights for found in packed_matrices(each)]
    if not is_dataclass(weights):
        return []
    return [f for field in fields(weights) for f in packed_matrices(getattr(weights, field.name))]


@FP8_TOO
@pytest.mark.parametrize("stored", [None, AWQ, INT8], ids=["nvfp4", "int4", "int8"])
def test_a_model_of_the_values_gives_the_same_logits(
    stored: dict[str, Any] | None, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dummy weights, made NVFP4 at load, or as a checkpoint in integers has them, and ``values`` of
    tests/gpu/test_nvfp4.py, with which a GPU's logits are compared."""
    config = replace(settings(folder), load_format="dummy")
    model = read_config(folder)
    if stored is not None:
        of_folder = json.loads((folder / "config.json").read_text())
        of_folder["quantization_config"] = stored
        (folder / "config.json").write_text(json.dumps(of_folder))
    quantize: Quantize = "nvfp4" if stored is None else "none"
    packed = as_on_a_gpu(replace(config, quantize=quantize), monkeypatch)
    config = replace(config, quantize="none" if stored is None else "dequantize")
    plain = loaded(config, TritonKernels(model, torch.device("cpu"), 4))
    plain._model.weights = values(packed._model.weights)
    assert all(
        isinstance(layer.mlp, MoeWeights) and isinstance(layer.mlp.down, Matrix)
        for layer in plain._model.weights.layers
    )
    with torch.inference_mode():
        ours, theirs = (logits_of(engine) for engine in (packed, plain))
    assert (ours - theirs).norm() < 0.02 * theirs.norm()


@FP8_TOO
def test_steps_with_drafts_give_the_tokens_of_steps_without(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The draft layer's experts are in BF16, as the official conversion keeps them."""
    config = replace(settings(folder), quantize="nvfp4", max_drafts=2, decode_buckets=(2,))
    truth = answers(as_on_a_gpu(config, monkeypatch), NUM_TOKENS_WITH_DRAFTS)
    cuda_path.on_the_cpu(monkeypatch)
    engine = cuda_path.load(config)
    assert engine._model.weights.mtp is not None
    assert isinstance(engine._model.weights.mtp.layer.mlp, MoeWeights)
    assert isinstance(engine._model.weights.mtp.layer.mlp.down, Matrix)
    assert answers(engine, NUM_TOKENS_WITH_DRAFTS, num_drafts=2) == truth


FOUR_BITS = {"bits": 4, "zero_point": True}
INTEGERS: dict[str, tuple[checkpoints.Writer, dict[str, Any]]] = {
    "int4": (
        checkpoints.pack_quantized(4, 32, symmetric=False),
        groups("pack-quantized", num_bits=4, strategy="group", group_size=32, symmetric=False),
    ),
    "awq": (checkpoints.awq(32), FOUR_BITS | {"quant_method": "awq", "group_size": 32}),
    "gptq": (
        checkpoints.gptq(64, symmetric=True),
        FOUR_BITS | {"quant_method": "gptq", "group_size": 64},
    ),
    "int8": (
        checkpoints.per_row(torch.int8),
        groups("int-quantized", num_bits=8, strategy="channel"),
    ),
    "int8 packed": (
        checkpoints.pack_quantized(8, 64, symmetric=True),
        groups("pack-quantized", num_bits=8, strategy="group", group_size=64),
    ),
}


@pytest.mark.parametrize("form", INTEGERS)
def test_experts_in_integers_give_the_tokens_of_their_values(
    form: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, how = INTEGERS[form]
    stored = tmp_path / "integers"
    values = checkpoints.quantised(folder, stored, lambda _: writer, how)
    truth = answers(loaded(settings(values)))
    engine = as_on_a_gpu(settings(stored), monkeypatch)
    assert len(packed_matrices(engine._model.weights)) == 2 * 4
    assert engine.fingerprint == loaded(settings(stored)).fingerprint
    assert answers(engine) == truth


@pytest.mark.parametrize("form", ["modelopt", "compressed-tensors"])
def test_a_checkpoints_experts_give_the_tokens_of_their_values(
    form: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, how = {
        "modelopt": (checkpoints.modelopt_nvfp4, {"quant_algo": "NVFP4"}),
        "compressed-tensors": (checkpoints.compressed_nvfp4, {"format": "nvfp4-pack-quantized"}),
    }[form]
    weights = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
    groups = {"config_groups": {"group_0": {"weights": weights}}}
    values = checkpoints.quantised(
        folder, tmp_path / "nvfp4", lambda _: writer, {"quant_method": form} | how | groups
    )
    truth = answers(loaded(settings(values)))
    on_cpu = loaded(settings(tmp_path / "nvfp4"))
    assert answers(on_cpu) == truth
    engine = as_on_a_gpu(settings(tmp_path / "nvfp4"), monkeypatch)
    assert len(packed_matrices(engine._model.weights)) == 2 * 4
    assert engine.fingerprint == on_cpu.fingerprint
    assert answers(engine) == truth


def test_a_checkpoint_with_experts_in_another_format_too_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def writer(module: str) -> checkpoints.Writer | None:
        return None if "layers.1.mlp.experts.3." in module else checkpoints.modelopt_nvfp4

    how = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
    checkpoints.quantised(folder, tmp_path / "mixed", writer, how)
    config = replace(settings(tmp_path / "mixed"), device="cuda", dtype="bfloat16")
    monkeypatch.setattr(model_folder, "unsupported", lambda *_: "")
    with pytest.raises(
        ValueError, match=r"device: weights in NVFP4 .* experts are so in all layers"
    ):
        model_folder.read_model(config)
    model, _ = model_folder.read_model(replace(config, device="cpu"))
    assert not model.quantization.packs
    packed = set(model.quantization.packed)
    assert {"layers.0.mlp.experts.gate_up_proj", "layers.0.mlp.experts.down_proj"} <= packed
    assert not any(name.startswith("layers.1.mlp.experts") for name in packed)


FAMILIES, KINDS = ("qwen3", "qwen3_5", "gemma3_text"), ("nvfp4", "at load", *INTEGERS)
ONE_EACH = [(FAMILIES[0], kind) for kind in KINDS] + [(name, "nvfp4") for name in FAMILIES[1:]]
"""Each kind with one family, and each family with one kind."""


@pytest.mark.parametrize(("name", "kind"), combinations(list(product(FAMILIES, KINDS)), ONE_EACH))
def test_models_without_experts_give_the_tokens_of_their_values(
    name: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    write_config(plain, name)
    drawn_checkpoint(plain)
    config, values = replace(settings(plain), quantize="nvfp4"), plain
    if kind != "at load":
        how: dict[str, Any] = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
        writer: checkpoints.Writer = checkpoints.modelopt_nvfp4
        if kind in INTEGERS:
            writer, how = INTEGERS[kind]
        stored = tmp_path / "stored"
        values = checkpoints.quantised(plain, stored, lambda _: writer, how)
        config = settings(stored)
    truth = loaded(replace(config, model_dir=values))
    engine = as_on_a_gpu(config, monkeypatch)
    assert len(packed_matrices(engine._model.weights)) >= 2 * len(engine._model.weights.layers)
    assert answers(engine) == answers(truth)
