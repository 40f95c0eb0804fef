"""Checkpoints of compressed-tensors (llm-compressor): NVFP4, packed integers, FP8 and int8.

    nvfp4-pack-quantized:
        NAME.weight_packed        uint8 [rows, k / 2]
        NAME.weight_scale         e4m3 [rows, k / 16]
        NAME.weight_global_scale  float32 [1], a divisor;
    pack-quantized:
        NAME.weight_packed        int32 [rows, k * bits / 32]
        NAME.weight_scale         [rows, groups]
        NAME.weight_zero_point    int32 [rows * bits / 32, groups], if asymmetric
        NAME.weight_shape         int64 [2];
    float-quantized, int-quantized:
        NAME.weight               e4m3 or int8 [rows, k]
        NAME.weight_scale         [rows, 1], [1], or for e4m3 one per block of 128 x 128

Integers are stored plus half of their range, and so are zero points. Several groups of modules may
be in several formats. Activations are not quantised here, whatever the configuration says of
dynamic ones; scales of an FP8 KV cache are not used.

Source: github.com/vllm-project/compressed-tensors, ``compressors`` and ``quantization``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from engine.model.quantization import BLOCK
from engine.quantized.config import Config
from engine.quantized.format import SCALES, Format, Part, Shape, Stored, require
from engine.quantized.integers import GROUPS, MIN_GROUP, Grouped, require_groups, unpack
from engine.quantized.nvfp4 import GROUP, Nvfp4
from engine.quantized.scaled import Fp8Blocks, PerRow

IGNORED = (
    ".input_global_scale", ".k_scale", ".v_scale", ".q_scale", ".k_zero_point", ".v_zero_point"
)  # fmt: skip
NVFP4 = Nvfp4(
    (
        Part("packed", ".weight_packed", ("U8",)),
        Part("scale", ".weight_scale", ("F8_E4M3",)),
        Part("matrix_scale", ".weight_global_scale", ("F32",)),
    ),
    whole=".weight",
    reciprocal=True,
)


@dataclass(frozen=True)
class PackQuantized(Grouped):
    """Matrices of packed integers with ``group`` columns per scale; None: one scale per row."""

    bits: int
    group: int | None
    symmetric: bool
    whole: str = ".weight"

    @property
    def parts(self) -> tuple[Part, ...]:
        zeros = Part("zeros", ".weight_zero_point", ("I32",))
        return (
            Part("numbers", ".weight_packed", ("I32",)),
            Part("scale", ".weight_scale", SCALES),
            Part("shape", ".weight_shape", ("I64", "I32"), optional=True),
            *(() if self.symmetric else (zeros,)),
        )

    @property
    def kind(self) -> Literal["int4", "int8"] | None:
        if self.bits == 4:
            return "int4"
        return "int8" if self.symmetric and self.group != MIN_GROUP else None

    def shape(self, stored: Mapping[str, Shape]) -> Shape:
        per_word = 32 // self.bits
        rows, columns = stored["numbers"][0], stored["numbers"][1] * per_word
        num_groups = stored["scale"][1]
        require_groups(columns, self.group or columns, num_groups)
        require(
            stored["scale"] == (rows, num_groups)
            and stored.get("zeros", (rows // per_word, num_groups))
            == (rows // per_word, num_groups),
            f"shapes {dict(stored)} do not fit each other",
        )
        return rows, columns

    def integers(
        self, stored: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        numbers = unpack(stored["numbers"], self.bits, 1)
        shape = stored.get("shape")
        require(
            shape is None or tuple(shape.tolist()) == tuple(numbers.shape),
            f"weight_shape is not {list(numbers.shape)}",
        )
        scale = stored["scale"]
        zeros = scale.new_full(scale.shape, 1 << self.bits - 1, dtype=torch.int32)
        if not self.symmetric:
            zeros = unpack(stored["zeros"], self.bits, 0)
        return numbers, zeros, scale


def read(raw: dict[str, Any], folder: Path) -> Stored:
    """Read the configuration; a ValueError names what is not supported."""
    config = Config(raw, folder)
    sparsity = raw.get("sparsity_config")
    if sparsity and sparsity.get("format") != "dense":
        raise config.refusal("sparsity_config.format", sparsity.get("format"), ("dense",))
    if transforms := raw.get("transform_config"):
        raise config.refusal("transform_config", transforms, (None,))
    formats: dict[Format, str] = {}
    for name, scheme in config.mapping("config_groups").items():
        within = f"quantization_config.config_groups.{name}."
        scheme = {"format": raw.get("format")} | (scheme if isinstance(scheme, dict) else {})
        kind, form = _format(Config(scheme, folder, within))
        formats[form] = kind
    kinds = ", ".join(dict.fromkeys(formats.values()))
    return Stored(f"{kinds} (compressed-tensors)", tuple(formats), IGNORED)


def _format(scheme: Config) -> tuple[str, Format]:
    """The name and the format of one group of modules."""
    folder, within = scheme.folder, scheme.within
    weights = Config(scheme.mapping("weights"), folder, f"{within}weights.")
    weights.one_of("dynamic", False, default=False)
    kind, bits = weights.one_of("type", "float", "int", default="int"), weights.raw.get("num_bits")
    if kind == "float" and bits == 4:
        weights.one_of("strategy", "tensor_group")
        weights.one_of("group_size", GROUP)
        return "NVFP4", NVFP4
    if isinstance(activations := scheme.raw.get("input_activations"), dict):
        Config(activations, folder, f"{within}input_activations.").one_of(
            "dynamic", True, default=False
        )
    if kind == "float":
        weights.one_of("num_bits", 8)
        if weights.one_of("strategy", "channel", "tensor", "block") == "block":
            weights.one_of("block_structure", [BLOCK, BLOCK])
            return "FP8", Fp8Blocks(".weight", ".weight_scale")
        return "FP8", PerRow("F8_E4M3")
    bits = weights.one_of("num_bits", 4, 8)
    weights.one_of("actorder", None, False, "weight", "static")
    symmetric = weights.one_of("symmetric", True, False, default=True)
    if scheme.raw.get("format") == "int-quantized":
        weights.one_of("num_bits", 8)
        weights.one_of("strategy", "channel", "tensor")
        weights.one_of("symmetric", True, default=True)
        return "int8", PerRow("I8")
    strategies = ("group",) if bits == 4 else ("group", "channel")
    group = None
    if weights.one_of("strategy", *strategies) == "group":
        group = weights.one_of("group_size", *GROUPS)
    return f"int{bits}", PackQuantized(bits, group, symmetric)
