"""Targets of tensors that stay in int4 or int8 in memory."""

from dataclasses import dataclass

import torch

from engine.loading.plan import FLOATS, Interleaving
from engine.model.packed_experts import IntegerExperts
from engine.quantized.nvfp4 import rows_at_once


@dataclass(frozen=True)
class IntegerPlace:
    """A ``Target`` for ``rows`` from ``first`` on of one expert, or of the only matrix, stored in
    ``order`` if it is given. ``expert`` None: for all experts, which no checkpoint stores so."""

    into: IntegerExperts
    expert: int | None
    first: int
    rows: int
    order: Interleaving | None = None
    stored: tuple[str, ...] = FLOATS

    @property
    def shape(self) -> tuple[int, ...]:
        num, _, columns = self.into.shape
        return (self.rows, columns) if self.expert is not None else (num, self.rows, columns)

    @property
    def device(self) -> torch.device:
        return self.into.words.device

    def direct(self, dtype: torch.dtype) -> torch.Tensor | None:
        return None

    def copy(self, source: torch.Tensor) -> None:
        raise ValueError(f"{self.into.FORMAT}: a checkpoint must store these weights so")

    def copy_integers(
        self, numbers: torch.Tensor, zeros: torch.Tensor, scales: torch.Tensor
    ) -> None:
        """Write what a checkpoint stores (engine/quantized/integers.py): ``numbers`` [rows, k],
        ``zeros`` and ``scales`` [rows, groups]."""
        assert self.expert is not None
        numbers, zeros, scales = (self._ordered(each) for each in (numbers, zeros, scales))
        at_once = min(rows_at_once(self.shape[-1]), self.rows)
        (run,) = set(self.into.runs)
        at_once = max(run, at_once // run * run)
        for first in range(0, self.rows, at_once):
            some = slice(first, first + at_once)
            self.into.fill_rows(
                self.expert, self.first + first, numbers[some], zeros[some], scales[some]
            )

    def draw(self, generator: torch.Generator) -> None:
        if self.first == 0:
            self.into.draw(generator)

    def _ordered(self, source: torch.Tensor) -> torch.Tensor:
        return source if self.order is None else self.order.ordered(source)
