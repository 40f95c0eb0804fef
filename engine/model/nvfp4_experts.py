"""Experts' weights in NVFP4, in the order of bits in which W4A16 kernels read them.

The order, and why it is so: engine/kernels/triton_nvfp4.py. Formats: engine/quantized/nvfp4.py.
"""

from dataclasses import dataclass

import torch

from engine.quantized.nvfp4 import E2M1, GROUP, MAX_CODE

COLUMNS = 64
"""Columns of a row that 16 words of four codes hold."""
SIGN_BITS = 15, 12, 9, 14
SIZE_BITS = (8, 7, 6), (5, 4, 3), (2, 1, 0), (13, 11, 10)
"""Where a word has each plane's sign, and the bits of its size from the highest on."""
EXPONENT = 21
"""What the five bits of a scale's exponent have been increased by."""
MATRIX_FACTOR = 2.0**8
"""What kernels leave for the matrix scale to multiply by."""


@dataclass(frozen=True)
class Nvfp4Experts:
    """Experts [experts, rows, k]: ``words`` int16 [experts, k / 64, rows, 16]; ``scales`` int32
    [experts, k / 64, rows], four to a number; ``matrix_scales`` float32 [experts, runs], one for
    each of equal runs of rows."""

    words: torch.Tensor
    scales: torch.Tensor
    matrix_scales: torch.Tensor

    @classmethod
    def empty(
        cls, num: int, rows: int, columns: int, runs: int, device: torch.device
    ) -> "Nvfp4Experts":
        """Memory for experts. Raises ValueError if ``columns`` is no multiple of 64."""
        if columns % COLUMNS:
            raise ValueError(f"NVFP4: {columns} columns are no multiple of {COLUMNS}")
        blocks = num, columns // COLUMNS, rows
        return cls(
            torch.empty((*blocks, GROUP), dtype=torch.int16, device=device),
            torch.empty(blocks, dtype=torch.int32, device=device),
            torch.empty((num, runs), dtype=torch.float32, device=device),
        )

    @classmethod
    def of(
        cls, packed: torch.Tensor, scales: torch.Tensor, matrix_scales: torch.Tensor
    ) -> "Nvfp4Experts":
        """Order a checkpoint's ``packed`` uint8 [experts, rows, k / 2], ``scales`` e4m3 [experts,
        rows, k / 16] and ``matrix_scales`` [experts, runs]."""
        num, rows, half = packed.shape
        experts = cls.empty(num, rows, 2 * half, matrix_scales.shape[1], packed.device)
        for i in range(num):
            experts.fill(i, slice(0, rows), packed[i], scales[i])
        experts.matrix_scales.copy_(matrix_scales * MATRIX_FACTOR)
        return experts

    def fill(
        self, expert: int, rows: slice, packed: torch.Tensor, scales: torch.Tensor
    ) -> None:
        """Order rows of one expert, as in ``of``, without the matrix scale."""
        words, ordered = ordered_words(packed, scales)
        self.words[expert, :, rows].copy_(words)
        self.scales[expert, :, rows].copy_(ordered)

    def dequantised(self) -> torch.Tensor:
        """The values, float32 [experts, rows, k]."""
        words, bits = self.words.int(), self.scales.unsqueeze(-1)
        signed = torch.tensor(E2M1 + tuple(-value for value in E2M1), device=words.device)
        planes = []
        for plane, (sign, size) in enumerate(zip(SIGN_BITS, SIZE_BITS, strict=True)):
            code = (words >> sign & 1) << 3
            for place, bit in enumerate(reversed(size)):
                code |= (words >> bit & 1) << place
            wide = bits >> 8 * plane & 0xFF
            scale = (1 + (wide & 7) / 8) * torch.exp2((wide >> 3) - float(EXPONENT))
            planes.append(signed[code] * scale)
        rows = torch.stack(planes, -2).flatten(-2).transpose(1, 2).flatten(-2)
        runs = self.matrix_scales.repeat_interleave(rows.shape[1] // self.matrix_scales.shape[1], 1)
        return rows * (runs / MATRIX_FACTOR).unsqueeze(-1)

    @property
    def shape(self) -> torch.Size:
        num, blocks, rows = self.scales.shape
        return torch.Size((num, rows, blocks * COLUMNS))

    @property
    def nbytes(self) -> int:
        return self.words.nbytes + self.scales.nbytes + self.matrix_scales.nbytes


def ordered_words(
    packed: torch.Tensor, scales: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(words int16 [k / 64, rows, 16], scales int32 [k / 64, rows]) of a checkpoint's packed uint8
    [rows, k / 2] and scales e4m3 [rows, k / 16]. Raises ValueError for a negative scale or NaN."""
    bits = scales.view(torch.uint8).int()
    if bool((bits > MAX_CODE).any()):
        raise ValueError("NVFP4: a scale that is negative or no number")
    codes = torch.stack((packed & 15, packed >> 4), -1).flatten(-2).int()
    # The codes of a group whose scale is 0, which has no exponent below, become 0.
    codes = (codes.unflatten(-1, (-1, GROUP)) * (bits > 0).unsqueeze(-1)).flatten(-2)
    planes = codes.unflatten(-1, (-1, 4, GROUP)).unbind(-2)
    words = torch.zeros_like(planes[0])
    for code, sign, size in zip(planes, SIGN_BITS, SIZE_BITS, strict=True):
        words |= (code >> 3 & 1) << sign
        for bit, place in zip((2, 1, 0), size, strict=True):
            words |= (code >> bit & 1) << place
    wide = wide_scales(bits).unflatten(-1, (-1, 4))
    shifts = torch.arange(0, 32, 8, device=wide.device)
    together = (wide << shifts).sum(-1)
    return (
        words.to(torch.int16).transpose(0, 1).contiguous(),
        together.to(torch.int32).transpose(0, 1).contiguous(),
    )


def wide_scales(bits: torch.Tensor) -> torch.Tensor:
    """e4m3 numbers, as int32 bits, in five bits of exponent (plus EXPONENT) and three of mantissa."""
    exponent, mantissa = bits >> 3, bits & 7
    # A denormal m * 2**-9 is 2**(floor(log2 m) - 9) times a mantissa of 1 to 1.875.
    top = (mantissa >= 2).int() + (mantissa >= 4).int()
    denormal = (top + 12) << 3 | (mantissa << (3 - top)) & 7
    return torch.where(exponent > 0, (exponent + 14) << 3 | mantissa, denormal)
