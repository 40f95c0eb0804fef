"""Eight-bit numbers with scales: FP8 or int8 with one for each row or matrix, FP8 with one for each
block of 128 x 128.

    value[r, c] = number[r, c] * scale[r]        or        number[r, c] * scale[r // 128, c // 128]

Sources: compressed-tensors (``float-quantized``, ``int-quantized``), NVIDIA's Model Optimizer, and
for ``weight_scale_inv`` the official FP8 checkpoints.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from engine.model.quantization import BLOCK
from engine.quantized.format import SCALES, Part, Shape, require
from engine.quantized.integers import Grouped

ZERO = 128
"""What int8 numbers are increased by."""
Number = Literal["F8_E4M3", "I8"]


@dataclass(frozen=True)
class PerRow(Grouped):
    """Matrices [rows, k] with scales [rows], [rows, 1], or one for the whole matrix."""

    number: Number
    whole: str = ".weight"

    @property
    def kind(self) -> Literal["int4", "int8"] | None:
        return "int8" if self.number == "I8" else None

    @property
    def parts(self) -> tuple[Part, ...]:
        return (
            Part("numbers", ".weight", (self.number,)),
            Part("scale", ".weight_scale", SCALES),
        )

    def shape(self, stored: Mapping[str, Shape]) -> Shape:
        numbers, scale = stored["numbers"], stored["scale"]
        rows = numbers[0]
        require(
            scale in ((), (1,), (rows,), (rows, 1)),
            f"scales of shape {list(scale)} for {list(numbers)} values, expected one per row",
        )
        return numbers

    def integers(
        self, stored: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        numbers = stored["numbers"].int() + ZERO
        scale = stored["scale"].reshape(-1, 1).expand(len(numbers), 1)
        return numbers, torch.full_like(scale, ZERO, dtype=torch.int32), scale

    def values(self, stored: Mapping[str, torch.Tensor]) -> torch.Tensor:
        scale = stored["scale"].float()
        return stored["numbers"].float() * (scale.reshape(-1, 1) if scale.dim() else scale)


@dataclass(frozen=True)
class Fp8Blocks:
    """Matrices [..., rows, k] in e4m3 with a scale per block of 128 x 128; the last block of a row
    or column may be smaller. ``scale`` is the suffix of the scales."""

    whole: str
    scale: str

    @property
    def parts(self) -> tuple[Part, ...]:
        return Part("numbers", self.whole, ("F8_E4M3",)), Part("scale", self.scale, SCALES)

    def shape(self, stored: Mapping[str, Shape]) -> Shape:
        *lead, rows, columns = stored["numbers"]
        require(
            stored["scale"] == (*lead, -(-rows // BLOCK), -(-columns // BLOCK)),
            f"scales of shape {list(stored['scale'])} for {[*lead, rows, columns]} values, "
            f"expected one per block of {BLOCK} x {BLOCK}",
        )
        return (*lead, rows, columns)

    def values(self, stored: Mapping[str, torch.Tensor]) -> torch.Tensor:
        numbers = stored["numbers"].float()
        scale = stored["scale"].float().repeat_interleave(BLOCK, -2)[..., : numbers.shape[-2], :]
        return numbers * scale.repeat_interleave(BLOCK, -1)[..., : numbers.shape[-1]]
