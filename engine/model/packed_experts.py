"""Experts' weights in memory, in the formats that W4A16 and W8A16 kernels unpack."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Self

import torch

COLUMNS = 64
"""Columns of a row that 16 words of four numbers hold."""
WORDS = 16
"""Words of one row in such a block of columns."""
RUN = 64
"""Rows of a matrix that is no expert's that have a matrix scale of their own."""


@dataclass(frozen=True)
class PackedExperts(ABC):
    """Experts [experts, rows, k], each of matrices of ``runs`` rows.

    ``words`` [experts, k / 64, rows, 16]: int16 in NVFP4, uint16 in int4 and int32 in int8, by
    which kernels know the format; ``scales`` int32 [experts, k / 64, rows]; ``matrix_scales``
    float32 [experts, runs].
    """

    words: torch.Tensor
    scales: torch.Tensor
    matrix_scales: torch.Tensor
    runs: tuple[int, ...]

    FORMAT: ClassVar[str]
    WORD: ClassVar[torch.dtype]

    @classmethod
    def empty(cls, num: int, runs: tuple[int, ...], columns: int, device: torch.device) -> Self:
        """Memory for experts. Raises ValueError if ``columns`` is no multiple of 64."""
        if columns % COLUMNS:
            raise ValueError(f"{cls.FORMAT}: {columns} columns are no multiple of {COLUMNS}")
        blocks = num, columns // COLUMNS, sum(runs)
        return cls(
            torch.empty((*blocks, WORDS), dtype=cls.WORD, device=device),
            torch.empty(blocks, dtype=torch.int32, device=device),
            torch.empty((num, len(runs)), dtype=torch.float32, device=device),
            runs,
        )

    @property
    def shape(self) -> torch.Size:
        num, blocks, rows = self.scales.shape
        return torch.Size((num, rows, blocks * COLUMNS))

    @property
    def nbytes(self) -> int:
        return self.words.nbytes + self.scales.nbytes + self.matrix_scales.nbytes

    @abstractmethod
    def draw(self, generator: torch.Generator) -> None:
        """Fill with random values that have a variance of 1 / k."""

    @abstractmethod
    def dequantised(self) -> torch.Tensor:
        """The values, float32 [experts, rows, k]."""


class IntegerExperts(PackedExperts):
    """Experts in integers with scales and zero points (engine/quantized/integers.py)."""

    @abstractmethod
    def fill_rows(
        self,
        expert: int,
        first: int,
        numbers: torch.Tensor,
        zeros: torch.Tensor,
        scales: torch.Tensor,
    ) -> None:
        """Write rows of one expert, from ``first`` on, which are whole runs of equal lengths:
        ``numbers`` int32 [rows, k], ``zeros`` int32 and ``scales`` [rows, k / group]. Raises
        ValueError for what the format cannot hold."""
