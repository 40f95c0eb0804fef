"""Checkpoints of NVIDIA's Model Optimizer: NVFP4, alone or with FP8 in other layers.

    NVFP4:
        NAME.weight          uint8 [rows, k / 2]
        NAME.weight_scale    e4m3 [rows, k / 16]
        NAME.weight_scale_2  float32 [];
    FP8:
        NAME.weight          e4m3 [rows, k]
        NAME.weight_scale    float32 [] or [rows]

Experts are stored one by one, or as ``experts.NAME``, ``experts.NAME_weight_scale`` and so on with
a dimension of experts. ``input_scale``, a calibrated scale of activations, is not used: activations
are not quantised here. Neither are the scales of an FP8 KV cache.

Source: github.com/NVIDIA/Model-Optimizer, ``modelopt/torch/export``. ``quantization_config`` in
``config.json`` has the fields of ``quantization`` in ``hf_quant_config.json``; older exports have
only the latter.
"""

from pathlib import Path
from typing import Any

from engine.quantized.config import Config
from engine.quantized.format import Format, Part, Stored
from engine.quantized.nvfp4 import GROUP, Nvfp4
from engine.quantized.scaled import PerRow

FILE = "hf_quant_config.json"
NVFP4 = ("NVFP4", "W4A16_NVFP4")
IN_MIXED = (*NVFP4, "FP8", "FP8_PER_CHANNEL_PER_TOKEN", "UNQUANTIZED", None)
"""What may be a layer's ``quant_algo`` in a checkpoint of several."""
IGNORED = ("input_scale", ".k_scale", ".v_scale", ".k_proj.output_scale", ".v_proj.output_scale")


def _nvfp4(values: str, scales: str) -> Nvfp4:
    return Nvfp4(
        (
            Part("packed", values, ("U8",)),
            Part("scale", f"{scales}weight_scale", ("F8_E4M3",)),
            Part("matrix_scale", f"{scales}weight_scale_2", ("F32",)),
        ),
        whole=values,
    )


LINEAR, FUSED = _nvfp4(".weight", "."), _nvfp4("", "_")


def read(raw: dict[str, Any], folder: Path) -> Stored:
    """Read the configuration; a ValueError names what is not supported."""
    config = Config(raw, folder)
    if isinstance(nested := raw.get("quantization"), dict):
        config = Config(nested, folder, within="quantization_config.quantization.")
    algo = config.one_of("quant_algo", *NVFP4, "MIXED_PRECISION")
    if algo in NVFP4:
        config.one_of("group_size", GROUP, None)
        return Stored("NVFP4 (modelopt)", (LINEAR, FUSED), IGNORED)
    # Some exports name the layers elsewhere, and some nest them twice.
    layers = config.mapping("quantized_layers") if "quantized_layers" in config.raw else {}
    for name, layer in layers.get("quantized_layers", layers).items():
        own = Config(layer if isinstance(layer, dict) else {}, folder, f"quantized_layers.{name}.")
        if own.one_of("quant_algo", *IN_MIXED) in NVFP4:
            own.one_of("group_size", GROUP, None)
    formats: tuple[Format, ...] = (LINEAR, FUSED, PerRow("F8_E4M3"))
    return Stored("NVFP4 with FP8 (modelopt)", formats, IGNORED)
