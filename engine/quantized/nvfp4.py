"""NVFP4: four-bit numbers, a scale per 16 columns, and a scale per matrix.

    value[r, c] = e2m1[r, c] * (scale[r, c // 16] * matrix_scale)

``e2m1``: a sign and one of 0, 0.5, 1, 1.5, 2, 3, 4, 6; two in a byte, the even column in the low
four bits. ``scale``: e4m3, not negative. ``matrix_scale``: float32.

Source: NVIDIA's Model Optimizer (tensors of a checkpoint: modelopt.py) and compressed-tensors,
which stores the reciprocal of ``matrix_scale`` (compressed_tensors.py).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from engine.quantized.format import Part, Shape, require

GROUP = 16
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E2M1_MAX = 6.0
E4M3 = torch.float8_e4m3fn
E4M3_MAX = 448.0
MAX_CODE = 126
"""The bits of the largest e4m3 number. Bits of positive e4m3 numbers have the numbers' order."""
AT_ONCE = 1 << 23
"""Values of a matrix that are converted at a time: each takes some thirty bytes meanwhile."""
ROWS_AT_ONCE = 64
"""Rows that are converted at a time are a multiple of this."""
TRIED = range(-3, 9)
"""Scales that are tried for a group, as distances of their bits from those of its amax / 6."""


@dataclass(frozen=True)
class Nvfp4:
    """Matrices in NVFP4. ``parts``: values, scales and matrix scale, with keys ``packed``,
    ``scale`` and ``matrix_scale``; ``reciprocal``: the stored matrix scale is a divisor."""

    parts: tuple[Part, ...]
    whole: str
    reciprocal: bool = False

    def shape(self, stored: Mapping[str, Shape]) -> Shape:
        *lead, half = stored["packed"]
        columns = 2 * half
        require(
            stored["scale"] == (*lead, columns // GROUP) and columns % GROUP == 0,
            f"scales of shape {list(stored['scale'])} for {[*lead, columns]} values; NVFP4 has a "
            f"scale per {GROUP} columns",
        )
        return (*lead, columns)

    def values(self, stored: Mapping[str, torch.Tensor]) -> torch.Tensor:
        packed, scale = stored["packed"], stored["scale"].float()
        matrix_scale = _wide(stored["matrix_scale"].float(), packed.shape)
        scale = scale / matrix_scale if self.reciprocal else scale * matrix_scale
        return dequantise(packed, scale)

    def packed(
        self, stored: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(values uint8 [..., rows, k / 2], scales e4m3 [..., rows, k / 16], matrix scale float32)
        as they are stored."""
        matrix_scale = stored["matrix_scale"].float()
        if self.reciprocal:
            matrix_scale = matrix_scale.reciprocal()
        return stored["packed"], stored["scale"], matrix_scale


def dequantise(packed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Convert packed numbers, uint8 [..., rows, k / 2], to float32 [..., rows, k]. ``scale``
    float32 [..., rows, k / 16]: products of both scales."""
    if packed.dim() > 2:  # one expert at a time: a code takes several bytes meanwhile
        values = scale.new_empty(*packed.shape[:-1], 2 * packed.shape[-1])
        for into, own, own_scale in zip(values, packed, scale, strict=True):
            into.copy_(dequantise(own, own_scale))
        return values
    signed = torch.tensor(E2M1 + tuple(-value for value in E2M1), device=packed.device)
    codes = torch.stack((packed & 15, packed >> 4), -1).flatten(-2)
    values = signed[codes.int()]
    values.unflatten(-1, (-1, GROUP)).mul_(scale.unsqueeze(-1))
    return values


def rounded(rows: torch.Tensor) -> torch.Tensor:
    """The values [rows, k], float32, that NVFP4 gives the matrix ``rows`` [rows, k]."""
    values, largest = torch.empty(rows.shape, device=rows.device), largest_of(rows)
    at_once = rows_at_once(rows.shape[-1])
    for into, some in zip(values.split(at_once), rows.split(at_once), strict=True):
        packed, scale, matrix_scale = converted(some, largest)
        into.copy_(dequantise(packed, scale.float() * matrix_scale)[..., : rows.shape[-1]])
    return values


def rows_at_once(columns: int) -> int:
    """The rows of so many columns that are converted at a time."""
    return max(1, AT_ONCE // columns // ROWS_AT_ONCE) * ROWS_AT_ONCE


def largest_of(rows: torch.Tensor) -> torch.Tensor:
    """The largest size of a value of the matrix ``rows`` [rows, k], float32 []."""
    lowest, highest = rows.aminmax()
    return torch.maximum(-lowest, highest).float()


def converted(
    rows: torch.Tensor, largest: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Convert matrices [..., rows, k] to (packed [..., rows, k / 2] uint8, scale [..., rows,
    k / 16] e4m3, matrix scale float32 [...]); k is rounded up to a multiple of 16, with zeros.

    The matrix scale is the largest value over 6 * 448; ``largest`` is that value where ``rows``
    are some of a matrix's. Each group of 16 columns gets the scale in
    ``TRIED`` with the least sum of squared errors.
    """
    columns = rows.shape[-1]
    groups = F.pad(rows.float(), (0, -columns % GROUP)).unflatten(-1, (-1, GROUP))
    amax = groups.abs().amax(-1)
    of_matrix = amax.amax((-2, -1), keepdim=True) if largest is None else largest.view(1, 1)
    matrix_scale = of_matrix / (E2M1_MAX * E4M3_MAX)
    matrix_scale = torch.where(matrix_scale > 0, matrix_scale, 1.0)
    middle = (amax / E2M1_MAX / matrix_scale).clamp(max=E4M3_MAX).to(E4M3)
    middle_code = middle.view(torch.uint8).short()
    best = torch.zeros_like(groups)
    best_code = torch.ones_like(middle_code, dtype=torch.uint8)
    best_error = torch.full_like(amax, float("inf"))
    for distance in TRIED:
        code = (middle_code + distance).clamp(1, MAX_CODE).to(torch.uint8)
        scale = (code.view(E4M3).float() * matrix_scale).unsqueeze(-1)
        numbers = round_to_e2m1(groups / scale)
        error = (numbers * scale - groups).square().sum(-1)
        better = error < best_error
        best = torch.where(better.unsqueeze(-1), numbers, best)
        best_code = torch.where(better, code, best_code)
        best_error = torch.where(better, error, best_error)
    return packed_codes(best.flatten(-2)), best_code.view(E4M3), matrix_scale[..., 0, 0]


def packed_codes(numbers: torch.Tensor) -> torch.Tensor:
    """Pack e2m1 numbers [..., k] two to a byte, [..., k / 2] uint8."""
    sizes = torch.tensor(E2M1, device=numbers.device)
    codes = torch.bucketize(numbers.abs(), sizes) + 8 * numbers.signbit()
    pairs: torch.Tensor = codes.to(torch.uint8).unflatten(-1, (-1, 2))
    return pairs[..., 0] + 16 * pairs[..., 1]


def round_to_e2m1(x: torch.Tensor) -> torch.Tensor:
    """The nearest e2m1 numbers; of two equally near ones, the one with an even last bit."""
    size = x.abs().clamp(max=E2M1_MAX)
    step = torch.where(size < 2, 0.5, torch.where(size < 4, 1.0, 2.0))
    return torch.copysign((size / step).round() * step, x)


def _wide(matrix_scale: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """The matrix scale in a shape that broadcasts over scales [..., rows, k / 16]. For experts in
    one tensor it is [experts], or [experts, n] with one for each of n equal runs of rows."""
    if matrix_scale.numel() == 1:
        return matrix_scale.reshape(())
    runs = matrix_scale.reshape(shape[0], -1)
    return runs.repeat_interleave(shape[-2] // runs.shape[1], 1).unsqueeze(-1)
