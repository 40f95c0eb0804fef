"""The target of a tensor that gets NVFP4's values as it arrives (``--quantize nvfp4``)."""

from dataclasses import dataclass, replace

import torch

from engine.loading.plan import FLOATS, Place
from engine.quantized.nvfp4 import rounded


@dataclass(frozen=True)
class RoundingPlace:
    """A plain ``Target`` [rows, k] or [experts, rows, k] for values that are rounded to NVFP4, one
    matrix at a time: of each expert, ``runs`` are the rows of its matrices."""

    values: Place
    runs: tuple[int, ...]
    stored: tuple[str, ...] = FLOATS

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    @property
    def device(self) -> torch.device:
        return self.values.device

    def direct(self, dtype: torch.dtype) -> torch.Tensor | None:
        return None

    def copy(self, source: torch.Tensor) -> None:
        if source.dim() == 2:
            self.values.copy(rounded(source))
            return
        for into, rows in zip(self.values.into, source, strict=True):
            for own, matrix in zip(into.split(self.runs), rows.split(self.runs), strict=True):
                own.copy_(rounded(matrix))

    def draw(self, generator: torch.Generator) -> None:
        self.values.draw(generator)
        in_place = replace(self, values=Place(self.values.into, self.shape))
        in_place.copy(self.values.into.clone())
