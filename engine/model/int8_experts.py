"""Weights in int8 with a scale per 64 columns, as W8A16 kernels read them.

    value[r, c] = (byte[r, c] - 128) * scale[r, c // 64]

A word's four bytes, from the lowest on, are those of columns j, 16 + j, 32 + j and 48 + j.
``scales`` are the bits of float32 numbers. Groups of 128 columns and whole rows repeat theirs.
Matrix scales are 1.

Formats: engine/quantized/integers.py; test: tests/kernels/experts/test_triton_integers.py.
"""

from typing import ClassVar

import torch

from engine.model.packed_experts import COLUMNS, WORDS, IntegerExperts

ZERO = 128
"""The number of 0."""
MEAN_SQUARE = sum((number - ZERO) ** 2 for number in range(2 * ZERO)) / (2 * ZERO)
"""The mean of the squares of numbers less ``ZERO``."""


class Int8Experts(IntegerExperts):
    """Experts in int8 (the module says how)."""

    FORMAT: ClassVar[str] = "int8"
    WORD: ClassVar[torch.dtype] = torch.int32

    def fill_rows(
        self,
        expert: int,
        first: int,
        numbers: torch.Tensor,
        zeros: torch.Tensor,
        scales: torch.Tensor,
    ) -> None:
        """As ``IntegerExperts``; a zero point that is not 128 is a ValueError."""
        if not bool((zeros == ZERO).all()):
            raise ValueError(f"int8: a zero point that is not {ZERO}")
        (run,) = set(self.runs)
        rows = slice(first, first + len(numbers))
        repeats = numbers.shape[1] // scales.shape[1] // COLUMNS
        planes = numbers.unflatten(1, (-1, COLUMNS // WORDS, WORDS)).to(torch.uint8)
        words = planes.transpose(2, 3).contiguous().view(torch.int32).squeeze(-1)
        self.words[expert, :, rows] = words.transpose(0, 1)
        wide = scales.float().repeat_interleave(repeats, 1)
        self.scales[expert, :, rows] = wide.view(torch.int32).t()
        self.matrix_scales[expert, rows.start // run : rows.stop // run] = 1

    def draw(self, generator: torch.Generator) -> None:
        """As ``PackedExperts``, with the same scale everywhere."""
        self.words.random_(-(1 << 31), 1 << 31, generator=generator)
        scale = (self.shape[-1] * MEAN_SQUARE) ** -0.5
        self.scales.view(torch.float32).fill_(scale)
        self.matrix_scales.fill_(1)

    def dequantised(self) -> torch.Tensor:
        """The values, float32 [experts, rows, k]."""
        planes = self.words.unsqueeze(-1).view(torch.uint8).transpose(-2, -1).flatten(-2)
        values = (planes.int() - ZERO) * self.scales.view(torch.float32).unsqueeze(-1)
        rows: torch.Tensor = values.transpose(1, 2).flatten(-2)
        return rows
