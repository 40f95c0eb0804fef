"""Weights in int4 with a scale and a zero point per 32 columns, as W4A16 kernels read them.

    value[r, c] = (number[r, c] - zero[r, c // 32]) * scale[r, c // 32] * matrix_scale[run of r]

A word's four numbers, from the lowest bits on, are those of columns j, 16 + j, 32 + j and 48 + j.
16 bits of ``scales`` serve 32 columns: the zero point in the highest four; then five bits of
exponent and seven of mantissa, the low bits of a bfloat16 of at most 1. The matrix scale is the
power of two that makes it so. Groups of 64 and 128 columns repeat their scale.

Scales have the eight significant bits of bfloat16: float16's are rounded. One below ``2**-31`` of
the largest of its run becomes 0.

Formats: engine/quantized/integers.py; test: tests/kernels/experts/test_triton_integers.py.
"""

from typing import ClassVar

import torch

from engine.model.packed_experts import COLUMNS, WORDS, IntegerExperts

GROUP = 32
"""Columns that have a scale and a zero point of their own."""
MOST = 15
"""The largest number and zero point."""
LEAST_SCALE = 0x3000
"""The bits of the least scale, as a bfloat16."""
HALF = 0x3F00 - LEAST_SCALE
"""The bits of the scale 0.5."""
MEAN_SQUARE = sum((number - 8) ** 2 for number in range(MOST + 1)) / (MOST + 1)
"""The mean of the squares of numbers less a zero point of 8 or 7."""


class Int4Experts(IntegerExperts):
    """Experts in int4 (the module says how)."""

    FORMAT: ClassVar[str] = "int4"
    WORD: ClassVar[torch.dtype] = torch.uint16

    def fill_rows(
        self,
        expert: int,
        first: int,
        numbers: torch.Tensor,
        zeros: torch.Tensor,
        scales: torch.Tensor,
    ) -> None:
        """As ``IntegerExperts``; a scale that is no finite number is a ValueError."""
        if not bool(scales.isfinite().all()):
            raise ValueError("int4: a scale that is no finite number")
        (run,) = set(self.runs)
        rows = slice(first, first + len(numbers))
        repeats = numbers.shape[1] // scales.shape[1] // GROUP
        scales = scales.float().bfloat16().float()
        top = torch.frexp(scales.abs().unflatten(0, (-1, run)).amax((1, 2))).exponent
        small = torch.ldexp(scales, -top.repeat_interleave(run).unsqueeze(1))
        bits = small.abs().bfloat16().view(torch.int16).int() - LEAST_SCALE
        # Numbers of a scale that is 0 are its zero point; a negative scale's are turned around.
        numbers = numbers.unflatten(1, (scales.shape[1], -1))
        numbers = torch.where((bits < 0).unsqueeze(2), zeros.unsqueeze(2), numbers)
        negative = scales < 0
        numbers = torch.where(negative.unsqueeze(2), MOST - numbers, numbers).flatten(1)
        zeros = torch.where(negative, MOST - zeros, zeros)
        halves = (bits.clamp(min=0) | zeros << 12).to(torch.int16).repeat_interleave(repeats, 1)
        self.words[expert, :, rows] = ordered_words(numbers)
        self.scales[expert, :, rows] = halves.view(torch.int32).t()
        factors = torch.exp2(top.float())
        self.matrix_scales[expert, rows.start // run : rows.stop // run] = factors

    def draw(self, generator: torch.Generator) -> None:
        """As ``PackedExperts``, with the zero points 8 and 7 in turn and one scale."""
        self.words.view(torch.int16).random_(-(1 << 15), 1 << 15, generator=generator)
        self.scales.fill_(HALF | 8 << 12 | (HALF | 7 << 12) << 16)
        self.matrix_scales.fill_(2 * (self.shape[-1] * MEAN_SQUARE) ** -0.5)

    def dequantised(self) -> torch.Tensor:
        """The values, float32 [experts, rows, k]."""
        words = self.words.int().unsqueeze(-2)
        shifts = torch.arange(0, 16, 4, device=words.device).unsqueeze(-1)
        numbers = (words >> shifts & MOST).unflatten(-2, (2, 2))  # ..., halves, planes, columns
        halves = self.scales.unsqueeze(-1) >> torch.tensor([0, 16], device=words.device)
        zeros = (halves >> 12 & MOST)[..., None, None]
        bits = (halves & 0xFFF | LEAST_SCALE).to(torch.int16)
        values = (numbers - zeros) * bits.view(torch.bfloat16).float()[..., None, None]
        lens = torch.tensor(self.runs, device=words.device)
        factors = self.matrix_scales.repeat_interleave(lens, 1).unsqueeze(-1)
        rows: torch.Tensor = values.flatten(-3).transpose(1, 2).flatten(-2) * factors
        return rows


def ordered_words(numbers: torch.Tensor) -> torch.Tensor:
    """Words uint16 [k / 64, rows, 16] of numbers int32 [rows, k]."""
    planes = numbers.unflatten(1, (-1, COLUMNS // WORDS, WORDS)).unbind(2)
    words: torch.Tensor = planes[0] | planes[1] << 4 | planes[2] << 8 | planes[3] << 12
    return words.to(torch.uint16).transpose(0, 1)
