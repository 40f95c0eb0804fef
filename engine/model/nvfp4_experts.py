"""Experts' weights in NVFP4, in the order of bits in which W4A16 kernels read them.

The order, and why it is so: engine/kernels/formats/triton_nvfp4.py. Formats:
engine/quantized/nvfp4.py.
"""

from functools import cache
from typing import ClassVar

import torch
import torch.nn.functional as F

from engine.model.packed_experts import PackedExperts
from engine.quantized.nvfp4 import E2M1, GROUP, MAX_CODE

SIGN_BITS = 15, 12, 9, 14
SIZE_BITS = (8, 7, 6), (5, 4, 3), (2, 1, 0), (13, 11, 10)
"""Where a word has each plane's sign, and the bits of its size from the highest on."""
EXPONENT = 21
"""What the five bits of a scale's exponent have been increased by."""
MATRIX_FACTOR = 2.0**8
"""What kernels leave for the matrix scale to multiply by."""
MEAN_SQUARE = sum(value * value for value in E2M1) / len(E2M1)


class Nvfp4Experts(PackedExperts):
    """Experts [experts, rows, k], each of matrices of ``runs`` rows.

    ``words`` int16 [experts, k / 64, rows, 16]; ``scales`` int32 [experts, k / 64, rows], four to a
    number; ``matrix_scales`` float32 [experts, runs].
    """

    FORMAT: ClassVar[str] = "NVFP4"
    WORD: ClassVar[torch.dtype] = torch.int16

    @classmethod
    def of(
        cls, packed: torch.Tensor, scales: torch.Tensor, matrix_scales: torch.Tensor
    ) -> "Nvfp4Experts":
        """Experts of ``fill``'s tensors, with matrix scales float32 [experts, runs] for equal runs
        of rows."""
        (num, rows, half), num_runs = packed.shape, matrix_scales.shape[1]
        runs = (rows // num_runs,) * num_runs
        made = cls.empty(num, runs, 2 * half, packed.device)
        parts = zip(packed.split(runs, 1), scales.split(runs, 1), strict=True)
        for run, (own, own_scales) in enumerate(parts):
            made.fill(slice(0, num), run, own, own_scales, matrix_scales[:, run])
        return made

    def fill(
        self,
        experts: slice,
        run: int,
        packed: torch.Tensor,
        scales: torch.Tensor,
        matrix_scales: torch.Tensor,
    ) -> None:
        """Write the matrix ``run`` of some experts: ``packed`` uint8 [experts, rows, k / 2],
        ``scales`` e4m3 [experts, rows, k / 16], ``matrix_scales`` [experts]. Raises ValueError for
        a scale that is negative or no number."""
        first = sum(self.runs[:run])
        rows = slice(first, first + self.runs[run])
        self.words[experts, :, rows] = ordered_words(packed, scales)
        self.scales[experts, :, rows] = ordered_scales(scales)
        self.matrix_scales[experts, run] = matrix_scales * MATRIX_FACTOR

    def fill_rows(
        self,
        first: int,
        packed: torch.Tensor,
        scales: torch.Tensor,
        matrix_scale: torch.Tensor,
    ) -> None:
        """Write rows of the only matrix here, from ``first`` on, which are whole runs: ``packed``
        [rows, k / 2] and ``scales`` [rows, k / 16], with one ``matrix_scale`` []. Raises as
        ``fill``."""
        (run,) = set(self.runs)
        rows = slice(first, first + len(packed))
        self.words[0, :, rows] = ordered_words(packed, scales)
        self.scales[0, :, rows] = ordered_scales(scales)
        self.matrix_scales[0, rows.start // run : rows.stop // run] = matrix_scale * MATRIX_FACTOR

    def draw(self, generator: torch.Generator) -> None:
        """As ``PackedExperts``."""
        self.words.random_(-(1 << 15), 1 << 15, generator=generator)
        self.scales.fill_(EXPONENT * 0x08080808 - (1 << 32))
        self.matrix_scales.fill_((self.shape[-1] * MEAN_SQUARE) ** -0.5 * MATRIX_FACTOR)

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
        lens = torch.tensor(self.runs, device=words.device)
        factors = (self.matrix_scales / MATRIX_FACTOR).repeat_interleave(lens, 1)
        values: torch.Tensor = rows * factors.unsqueeze(-1)
        return values


def ordered_words(packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Words int16 [..., k / 64, rows, 16] of a checkpoint's packed codes uint8 [..., rows, k / 2]
    and scales e4m3 [..., rows, k / 16]. The codes of a group whose scale is 0 become 0: a word's
    scale has no 0."""
    planes = torch.arange(0, 1024, 256, device=packed.device).unsqueeze(-1)
    index = packed.unflatten(-1, (-1, 4, GROUP // 2)) + planes
    used = (scales.view(torch.uint8) > 0).unflatten(-1, (-1, 4)).unsqueeze(-1)
    first, second, third, fourth = (_pair_bits(packed.device)[index] * used).unbind(-2)
    words: torch.Tensor = (first | second | third | fourth).view(torch.int16)
    return words.transpose(-3, -2)


def ordered_scales(scales: torch.Tensor) -> torch.Tensor:
    """Scales int32 [..., k / 64, rows] of scales e4m3 [..., rows, k / 16], as bytes with five bits
    of exponent and three of mantissa. Raises ValueError for a scale that is negative or NaN."""
    bits = scales.view(torch.uint8)
    if bool((bits > MAX_CODE).any()):
        raise ValueError("NVFP4: a scale that is negative or no number")
    wide = _wide_scales(bits.device)[bits.int()].view(torch.int32)
    return wide.transpose(-2, -1)


@cache
def _pair_bits(device: torch.device) -> torch.Tensor:
    """The bits in two neighbouring words, int32 [4 * 256], of a plane's byte of two codes."""
    codes = torch.arange(16)
    planes = []
    for sign, size in zip(SIGN_BITS, SIZE_BITS, strict=True):
        bits = (codes >> 3) << sign
        for bit, place in zip((2, 1, 0), size, strict=True):
            bits |= (codes >> bit & 1) << place
        planes.append((bits | bits[:, None] << 16).flatten())
    return torch.stack(planes).flatten().to(torch.int32).to(device)


@cache
def _wide_scales(device: torch.device) -> torch.Tensor:
    """The byte of a scale, uint8 [256], by the bits of the e4m3 number; 0 for others than scales.
    A denormal ``m * 2**-9`` is ``2**(floor(log2 m) - 9)`` times a mantissa of 1 to 1.875."""
    bits = torch.arange(MAX_CODE + 1)
    exponent, mantissa = bits >> 3, bits & 7
    top = (mantissa >= 2).int() + (mantissa >= 4).int()
    denormal = (top + EXPONENT - 9) << 3 | (mantissa << (3 - top)) & 7
    wide = torch.where(exponent > 0, (exponent + EXPONENT - 7) << 3 | mantissa, denormal)
    return F.pad(wide, (0, 255 - MAX_CODE)).to(torch.uint8).to(device)
