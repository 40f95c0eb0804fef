"""A weight whose rows are partly in FP8 or NVFP4, and the conversion to and from FP8.

    value[r, c] = fp8[r, c] * scale[r // 128, c // 128],   scale = amax(block) / 448

Source: the official FP8 checkpoints; 448 is the largest e4m3 number.
"""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from engine.model.packed_experts import PackedExperts
from engine.model.quantization import BLOCK

FP8 = torch.float8_e4m3fn
FP8_MAX = 448.0


@dataclass(frozen=True)
class Matrix:
    """A weight [..., rows, k]: rows in FP8 or NVFP4 first, then plain rows; either part may be
    empty.

    ``fp8`` e4m3 [..., FP8 rows, k]; ``scales`` float32 [..., FP8 rows / group, k / 128 rounded up],
    where ``group`` divides 128: rows of tensors that were converted apart do not share blocks.
    ``plain`` [..., other rows, k] in the compute dtype. ``packed`` [1, rows, k]: rows in NVFP4, of
    a weight [rows, k] without rows in FP8.
    """

    fp8: torch.Tensor
    scales: torch.Tensor
    plain: torch.Tensor
    packed: PackedExperts | None = None

    @classmethod
    def of(cls, plain: torch.Tensor) -> "Matrix":
        """The matrix of ``plain``, with no row in FP8."""
        *lead, _, columns = plain.shape
        fp8 = torch.empty((*lead, 0, columns), dtype=FP8, device=plain.device)
        scales = torch.empty((*lead, 0, -(-columns // BLOCK)), device=plain.device)
        return cls(fp8, scales, plain)

    @classmethod
    def of_packed(cls, packed: PackedExperts, plain: torch.Tensor) -> "Matrix":
        """The matrix of rows in NVFP4 [1, rows, k], followed by ``plain`` rows."""
        assert packed.shape[0] == 1, packed.shape
        return replace(cls.of(plain), packed=packed)

    @classmethod
    def converted(cls, rows: torch.Tensor) -> "Matrix":
        """Convert ``rows`` [..., rows, k] to FP8 as the official conversion does, in blocks from
        the first row on; the number of rows is a multiple of 128."""
        assert rows.shape[-2] % BLOCK == 0, rows.shape
        fp8, scales = quantise(rows)
        return cls(fp8, scales, rows[..., :0, :])

    @property
    def shape(self) -> torch.Size:
        *lead, _, columns = self.fp8.shape
        return torch.Size((*lead, self.num_quantised + self.plain.shape[-2], columns))

    @property
    def num_fp8(self) -> int:
        """Number of rows in FP8, which come first."""
        return self.fp8.shape[-2]

    @property
    def num_quantised(self) -> int:
        """Number of rows in FP8 or NVFP4, which come first."""
        return self.num_fp8 if self.packed is None else self.packed.shape[1]

    @property
    def group(self) -> int:
        """Number of FP8 rows that share a row of scales."""
        return self.num_fp8 // self.scales.shape[-2] if self.num_fp8 else BLOCK

    def first(self, num_rows: int) -> "Matrix":
        """The first ``num_rows`` rows, in the same memory; a multiple of ``group`` if they are in
        FP8."""
        assert self.packed is None, "rows in NVFP4 of one block of columns are side by side"
        num_fp8 = min(num_rows, self.num_fp8)
        scales = self.scales[..., : num_fp8 // self.group, :]
        return Matrix(self.fp8[..., :num_fp8, :], scales, self.plain[..., : num_rows - num_fp8, :])

    def part(self, first: int, num_rows: int) -> "Matrix":
        """Rows of a matrix whose rows are all in FP8, in the same memory; both numbers are
        multiples of ``group``."""
        assert not self.plain.shape[-2]
        end, group = first + num_rows, self.group
        scales = self.scales[..., first // group : end // group, :]
        return Matrix(self.fp8[..., first:end, :], scales, self.plain)

    @property
    def nbytes(self) -> int:
        packed = 0 if self.packed is None else self.packed.nbytes
        return self.fp8.nbytes + self.scales.nbytes + self.plain.nbytes + packed

    def dequantised(self) -> torch.Tensor:
        """The values [..., rows, k] in the plain rows' dtype; no copy if all rows are plain."""
        if self.packed is not None:
            packed = self.packed.dequantised()[0].to(self.plain.dtype)
            return torch.cat((packed, self.plain), dim=-2)
        if not self.num_fp8:
            return self.plain
        fp8 = dequantise(self.fp8, self.scales, self.group).to(self.plain.dtype)
        return torch.cat((fp8, self.plain), dim=-2)


def quantise(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Convert [..., rows, k] to e4m3 of that shape, with a float32 scale per block of 128 x 128;
    the last block of a row or column may be smaller."""
    num_rows, columns = rows.shape[-2:]
    padded = F.pad(rows, (0, -columns % BLOCK, 0, -num_rows % BLOCK)).float()
    blocks = padded.unflatten(-1, (-1, BLOCK)).unflatten(-3, (-1, BLOCK))
    amax = blocks.abs().amax((-3, -1))
    scales = torch.where(amax > 0, amax / FP8_MAX, 1.0)
    scaled = (blocks / scales[..., :, None, :, None]).clamp_(-FP8_MAX, FP8_MAX).to(FP8)
    values = scaled.flatten(-2).flatten(-3, -2)
    return values[..., :num_rows, :columns], scales


def dequantise(fp8: torch.Tensor, scales: torch.Tensor, group: int) -> torch.Tensor:
    """Convert e4m3 rows [..., rows, k] with scales [..., rows / group, blocks of k] to float32."""
    wide = scales.repeat_interleave(BLOCK, -1)[..., : fp8.shape[-1]]
    return fp8.float() * wide.repeat_interleave(group, -2)
