"""Reads how a checkpoint stores its matrices: ``quantization_config`` of ``config.json``, or
``hf_quant_config.json`` of older exports by NVIDIA's Model Optimizer."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.model.quantization import Quantization
from engine.quantized import awq, compressed_tensors, gptq, modelopt
from engine.quantized.config import Config
from engine.quantized.format import PLAIN, Stored
from engine.quantized.scaled import Fp8Blocks

READERS: dict[str, Callable[[dict[str, Any], Path], Stored]] = {
    "awq": awq.read,
    "compressed-tensors": compressed_tensors.read,
    "gptq": gptq.read,
    "modelopt": modelopt.read,
}
FP8_BLOCKS = Stored(
    "FP8 in blocks",
    (Fp8Blocks(".weight", ".weight_scale_inv"), Fp8Blocks("", "_scale_inv")),
)
"""The official FP8 checkpoints, read as values instead of as FP8."""


def read_quantization(raw: Any, folder: Path) -> tuple[Quantization, Stored]:
    """Read ``quantization_config``: which matrices stay in FP8, and how the others are stored.

    Raises ValueError naming what is not supported.
    """
    if raw is None and (folder / modelopt.FILE).is_file():
        raw = _modelopt_config(folder / modelopt.FILE)
    if not isinstance(raw, dict):
        return Quantization.read(raw, folder), PLAIN
    method = Config(raw, folder).one_of("quant_method", "fp8", *READERS)
    if method == "fp8":
        return Quantization.read(raw, folder), PLAIN
    return Quantization(), READERS[method](raw, folder)


def _modelopt_config(file: Path) -> dict[str, Any]:
    try:
        return {"quant_method": "modelopt", **json.loads(file.read_text(encoding="utf-8"))}
    except (ValueError, TypeError) as error:
        raise ValueError(f"{modelopt.FILE}: {file} is no JSON object: {error}") from error
