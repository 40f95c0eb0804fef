"""What is refused of quantised checkpoints, by name."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.config import EngineConfig
from engine.errors import CheckpointError
from engine.loading.model_folder import read_model
from tests.engine.driver import load_engine
from tests.engine.quantized.test_formats import (
    FP8_ARGS,
    GPTQ,
    MODELOPT,
    NVFP4_ARGS,
    compressed,
    integers,
    written,
)

PACKED = "pack-quantized"
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}


def grouped(**changes: Any) -> dict[str, Any]:
    """A configuration of int4 in groups of 128, with some arguments of weights changed."""
    return compressed(PACKED, {"weights": integers(4, 128)["weights"] | changes})


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"quant_method": "bitsandbytes"},
         "quant_method: 'bitsandbytes' .*only 'fp8', 'awq', .* are supported"),
        (GPTQ | {"desc_act": True}, "quantization_config.desc_act: True .*only False"),
        (GPTQ | {"bits": 8}, "quantization_config.bits: 8 .*only 4"),
        (GPTQ | {"group_size": -1}, "quantization_config.group_size: -1 .*only 32, 64 and 128"),
        (GPTQ | {"checkpoint_format": "marlin"}, "checkpoint_format: 'marlin'"),
        (GPTQ | {"pack_dtype": "int16"}, "quantization_config.pack_dtype: 'int16'"),
        (GPTQ | {"dynamic": {"-:.*mlp.*": {}}}, "quantization_config.dynamic: "),
        (AWQ | {"version": "gemv"}, "quantization_config.version: 'gemv'"),
        (AWQ | {"group_size": 256}, "quantization_config.group_size: 256"),
        (AWQ | {"zero_point": False}, "quantization_config.zero_point: False"),
        (MODELOPT | {"quant_algo": "NVFP4_AWQ"}, "quantization_config.quant_algo: 'NVFP4_AWQ'"),
        (MODELOPT | {"quant_algo": "FP8"}, "quantization_config.quant_algo: 'FP8' .*MIXED"),
        (MODELOPT | {"group_size": 32}, "quantization_config.group_size: 32 .*only 16"),
        (MODELOPT | {"quant_algo": "MIXED_PRECISION", "quantized_layers": {
            "lm_head": {"quant_algo": "W4A8_AWQ"}}}, "quantized_layers.lm_head.quant_algo: 'W4A8"),
        (grouped(group_size=16), "config_groups.group_0.weights.group_size: 16 .*32, 64 and 128"),
        (grouped(strategy="channel"), "weights.strategy: 'channel' .*only 'group'"),
        (grouped(actorder="group"), "weights.actorder: 'group'"),
        (grouped(actorder=True), "weights.actorder: True"),
        (grouped(num_bits=3), "weights.num_bits: 3 .*only 4 and 8"),
        (grouped(num_bits=True), "weights.num_bits: True"),
        (compressed("mxfp4-pack-quantized", {"weights": NVFP4_ARGS | {"group_size": 32}}),
         "weights.group_size: 32 .*only 16"),
        (compressed("mxfp4-pack-quantized", {"weights": NVFP4_ARGS | {"strategy": "group"}}),
         "weights.strategy: 'group' .*only 'tensor_group'"),
        (compressed("float-quantized", {"weights": FP8_ARGS, "input_activations": FP8_ARGS}),
         "group_0.input_activations.dynamic: False .*only True"),
        (compressed("float-quantized", {
            "weights": FP8_ARGS | {"strategy": "block", "block_structure": [64, 64]}}),
         r"weights.block_structure: \[64, 64\] .*only \[128, 128\]"),
        (compressed("int-quantized", integers(8, None, symmetric=False)),
         "weights.symmetric: False .*only True"),
        (compressed("x", {}), "config_groups.group_0.weights: None .*is not an object"),
        (grouped() | {"sparsity_config": {"format": "sparse-24-bitmask"}},
         "sparsity_config.format: 'sparse-24-bitmask'"),
        (grouped() | {"transform_config": {"config_groups": {"R1": {}}}}, "transform_config: "),
    ],
)  # fmt: skip
def test_other_variants_are_refused_by_name(
    config: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder, _ = written("int8", tmp_path, **config)
    with pytest.raises(ValueError, match=message):
        load_engine(folder)


def test_act_order_that_the_config_denies(tmp_path: Path) -> None:
    folder, _ = written("gptq", tmp_path)
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.0.linear_attn.out_proj"
    tensors[f"{name}.g_idx"] = tensors[f"{name}.g_idx"].flip(0)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=rf"tensor {name}\.weight .*act-order is not supp"):
        load_engine(folder)


@pytest.mark.parametrize(
    ("form", "suffix", "changed", "message"),
    [
        ("modelopt", "weight_scale", None, r"needs .*out_proj\.weight_scale, which is missing"),
        ("modelopt", "weight_scale", torch.ones(64, 2).to(torch.float8_e4m3fn),
         r"out_proj\.weight .*: scales of shape \[64, 2\] for \[64, 64\] .*per 16 columns"),
        ("modelopt", "weight_scale_2", torch.ones(1, dtype=torch.float16),
         r"out_proj\.weight_scale_2 has dtype F16, expected F32"),
        ("compressed-nvfp4", "weight_global_scale", None, r"weight_global_scale, which is miss"),
        ("fp8", "weight_scale", torch.ones(32, 1), r"scales of shape \[32, 1\] .*one per row"),
        ("int4", "weight_scale", torch.ones(64, 4), "4 scales per row for 64 columns in groups of"),
        ("int4", "weight_shape", torch.tensor([64, 60]), r"weight_shape is not \[64, 64\]"),
        ("int4", "weight_g_idx", torch.zeros(64).int(), r"unexpected tensor .*weight_g_idx"),
        ("awq", "qzeros", torch.zeros(2, 9).int(), "do not fit each other"),
        ("gptq", "scales", torch.ones(4, 64), "4 scales per row for 64 columns in groups of 32"),
    ],
)  # fmt: skip
def test_a_bad_part_is_named(
    form: str, suffix: str, changed: torch.Tensor | None, message: str, tmp_path: Path
) -> None:
    folder, _ = written(form, tmp_path)
    tensors = load_file(folder / "model.safetensors")
    name = f"model.layers.0.linear_attn.out_proj.{suffix}"
    tensors = {key: value for key, value in tensors.items() if key != name}
    save_file(tensors | ({} if changed is None else {name: changed}), folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=message):
        load_engine(folder)


@pytest.mark.parametrize("form", ["modelopt", "int4", "fp8"])
def test_gpus_need_a_word_about_it(form: str, tmp_path: Path) -> None:
    folder, _ = written(form, tmp_path)
    settings: dict[str, Any] = {"num_pages": 1, "num_state_slots": 1, "device": "cuda"}
    with pytest.raises(
        ValueError,
        match=r"device: weights in .* run on CPUs only; on GPUs .* NVFP4, int4 .*int8 do.*deq",
    ):
        read_model(EngineConfig(folder, **settings))
    model, _ = read_model(EngineConfig(folder, quantize="dequantize", **settings))
    assert model.stored.formats
    assert model.quantization.source == "none"
    model, _ = read_model(EngineConfig(folder, quantize="fp8", **settings))
    assert model.quantization.source == "load"
