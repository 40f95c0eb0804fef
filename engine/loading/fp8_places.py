"""Targets of a checkpoint's tensors in FP8 weights (engine/model/matrix.py)."""

from dataclasses import dataclass

import torch

from engine.loading.plan import FLOATS, Interleaving, Place
from engine.model.matrix import quantise
from engine.model.quantization import BLOCK

QUANTISED_AT_ONCE = 1 << 26
"""Values converted to FP8 at a time: each takes some ten bytes meanwhile."""


@dataclass(frozen=True)
class ScalePlace:
    """A ``Target`` for scales of blocks of 128 rows. ``into`` has a scale for each group of rows:
    group i belongs to the stored block ``blocks[i]``."""

    into: torch.Tensor
    shape: tuple[int, ...]
    blocks: torch.Tensor
    order: Interleaving | None = None
    stored: tuple[str, ...] = FLOATS

    @property
    def device(self) -> torch.device:
        return self.into.device

    def direct(self, dtype: torch.dtype) -> torch.Tensor | None:
        return None

    def copy(self, source: torch.Tensor) -> None:
        groups = source.index_select(-2, self.blocks.to(source.device))
        if self.order:
            self.order.copy(self.into, groups)
        else:
            self.into.copy_(groups)

    def draw(self, generator: torch.Generator) -> None:
        self.into.fill_(1.0)


@dataclass(frozen=True)
class QuantisingPlace:
    """An FP8 ``Target`` for a tensor in another dtype, which is converted as it arrives."""

    values: Place
    scales: ScalePlace
    dtype: torch.dtype
    """The dtype of dummy values before they are converted."""
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
        in_blocks = source.dim() == 2 and len(self.scales.into) == -(-len(source) // BLOCK)
        if source.numel() <= QUANTISED_AT_ONCE or self.values.order:
            self._convert(self.values, self.scales, source)
        elif in_blocks:
            self._convert_bands(source)
        elif source.dim() < 3:
            self._convert(self.values, self.scales, source)
        else:
            for value, scale, part in zip(self.values.into, self.scales.into, source, strict=True):
                values = Place(value, tuple(part.shape))
                self._convert(values, ScalePlace(scale, (), self.scales.blocks), part)

    def draw(self, generator: torch.Generator) -> None:
        drawn = torch.empty(self.shape, dtype=self.dtype, device=self.device)
        self.copy(drawn.normal_(self.values.mean, self.values.std, generator=generator))

    def _convert_bands(self, source: torch.Tensor) -> None:
        """Convert a matrix [rows, k] whose groups of rows are whole blocks, some blocks at a
        time."""
        num_blocks = max(1, QUANTISED_AT_ONCE // (BLOCK * source.shape[1]))
        scales = self.scales.into.split(num_blocks)
        rows = zip(
            *(of.split(num_blocks * BLOCK) for of in (self.values.into, source)), strict=True
        )
        for (values, part), own in zip(rows, scales, strict=True):
            place = Place(values, tuple(part.shape))
            self._convert(place, ScalePlace(own, (), self.scales.blocks[: len(own)]), part)

    def _convert(self, into: Place, scales_into: ScalePlace, source: torch.Tensor) -> None:
        values, scales = quantise(source)
        into.copy(values.contiguous())
        scales_into.copy(scales)
