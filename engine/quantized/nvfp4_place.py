"""Targets of tensors that stay in NVFP4 in memory: of experts, and of rows of a matrix."""

from dataclasses import dataclass

import torch

from engine.loading.plan import FLOATS, Interleaving
from engine.model.nvfp4_experts import Nvfp4Experts
from engine.quantized.format import require
from engine.quantized.nvfp4 import AT_ONCE, converted, largest_of, rows_at_once


@dataclass(frozen=True)
class Nvfp4Place:
    """A ``Target`` for all experts [experts, rows, k], or for the matrix ``run`` of one expert
    [rows, k].

    ``rounds``: tensors that are not quantised are converted as they arrive. Without it only
    ``copy_packed`` fills this place.
    """

    into: Nvfp4Experts
    expert: int | None = None
    run: int = 0
    rounds: bool = False
    stored: tuple[str, ...] = FLOATS

    @property
    def shape(self) -> tuple[int, ...]:
        num, rows, columns = self.into.shape
        if self.expert is None:
            return num, rows, columns
        return self.into.runs[self.run], columns

    @property
    def device(self) -> torch.device:
        return self.into.words.device

    def direct(self, dtype: torch.dtype) -> torch.Tensor | None:
        return None

    def copy(self, source: torch.Tensor) -> None:
        require(self.rounds, "experts in NVFP4 would be rounded, which --quantize nvfp4 asks for")
        if self.expert is not None:
            one = slice(self.expert, self.expert + 1)
            self.into.fill(one, self.run, *(part[None] for part in converted(source)))
            return
        step = max(1, AT_ONCE // source[0].numel())
        for first in range(0, len(source), step):
            some = source[first : first + step]
            experts = slice(first, first + len(some))
            for run, rows in enumerate(some.split(self.into.runs, dim=1)):
                self.into.fill(experts, run, *converted(rows))

    def copy_packed(
        self, packed: torch.Tensor, scales: torch.Tensor, matrix_scale: torch.Tensor
    ) -> None:
        """Write what a checkpoint stores (engine/quantized/nvfp4.py). A matrix scale of experts in
        one tensor is [experts], or has one more dimension with one for each matrix."""
        if self.expert is not None:
            require(matrix_scale.numel() == 1, f"{matrix_scale.numel()} scales for one matrix")
            one = slice(self.expert, self.expert + 1)
            self.into.fill(one, self.run, packed[None], scales[None], matrix_scale.reshape(1))
            return
        num, runs = len(packed), self.into.runs
        require(
            matrix_scale.numel() in (1, num, num * len(runs)),
            f"{matrix_scale.numel()} matrix scales for {num} experts of {len(runs)} matrices",
        )
        lead = num if matrix_scale.numel() > 1 else 1
        matrix_scale = matrix_scale.reshape(lead, -1).expand(num, len(runs))
        parts = zip(packed.split(runs, 1), scales.split(runs, 1), strict=True)
        for run, (own, own_scales) in enumerate(parts):
            for i in range(num):  # one at a time: a code takes several bytes meanwhile
                one = slice(i, i + 1)
                self.into.fill(one, run, own[one], own_scales[one], matrix_scale[one, run])

    def draw(self, generator: torch.Generator) -> None:
        self.into.draw(generator)


@dataclass(frozen=True)
class Nvfp4RowsPlace:
    """A ``Target`` for one tensor of a matrix [1, rows, k]: ``rows`` from ``first`` on, stored in
    ``order`` if it is given. ``rounds``: as in ``Nvfp4Place``."""

    into: Nvfp4Experts
    first: int
    rows: int
    order: Interleaving | None = None
    rounds: bool = False
    stored: tuple[str, ...] = FLOATS

    @property
    def shape(self) -> tuple[int, ...]:
        return self.rows, self.into.shape[-1]

    @property
    def device(self) -> torch.device:
        return self.into.words.device

    def direct(self, dtype: torch.dtype) -> torch.Tensor | None:
        return None

    def copy(self, source: torch.Tensor) -> None:
        require(self.rounds, "a matrix in NVFP4 would be rounded, which --quantize nvfp4 asks for")
        rows, largest = self._ordered(source), largest_of(source)
        at_once = rows_at_once(self.shape[1])
        for first in range(0, self.rows, at_once):
            some = converted(rows[first : first + at_once], largest)
            self.into.fill_rows(self.first + first, *some)

    def copy_packed(
        self, packed: torch.Tensor, scales: torch.Tensor, matrix_scale: torch.Tensor
    ) -> None:
        """Write what a checkpoint stores (engine/quantized/nvfp4.py)."""
        require(matrix_scale.numel() == 1, f"{matrix_scale.numel()} scales for one matrix")
        ordered = self._ordered(scales.view(torch.uint8)).view(scales.dtype)
        packed, at_once = self._ordered(packed), rows_at_once(self.shape[1])
        for first in range(0, self.rows, at_once):
            some = slice(first, first + at_once)
            self.into.fill_rows(
                self.first + first, packed[some], ordered[some], matrix_scale.reshape(())
            )

    def draw(self, generator: torch.Generator) -> None:
        if self.first == 0:
            self.into.draw(generator)

    def _ordered(self, source: torch.Tensor) -> torch.Tensor:
        return source if self.order is None else self.order.ordered(source)
