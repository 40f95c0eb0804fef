# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Matrices in NVFP4 as W4A16 kernels read them.

    value[r, c] = e2m1[r, c] * scale[r, c // 16] * matrix_scale[run of r]

In a checkpoint a byte holds two neighbouring columns. Here byte j of each 64 holds columns j (low
four bits) and 64 + j (high) of 128, so that both halves of the unpacked bytes are multiplied by
64 adjacent columns of the input.

An e2m1 number times an e4m3 scale has at most six significant bits: it is exact in bfloat16. The
matrix scale multiplies the sum. So a product differs from that with dequantised weights in the
rounding of sums alone.

Reference: engine/quantized/nvfp4.py; test: tests/kernels/test_triton_nvfp4.py.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from engine.kernels.triton_dot import dot

GROUP = tl.constexpr(16)
HALF = tl.constexpr(64)
"""Bytes of a row whose low and high halves are adjacent columns."""
DOUBLED = tl.constexpr(0xC8643210 - (1 << 32))
"""Twice the numbers 0, 0.5, 1, 1.5, 2, 3, 4, 6 of the codes 0 to 7, four bits each; an int32."""
TWO_TO_23 = tl.constexpr(0x4B000000)
"""The bits of 2**23 in float32, whose last bits count ones."""


@dataclass(frozen=True)
class Nvfp4Experts:
    """``codes`` uint8 [experts, rows, k / 2] in the order above; ``scales`` e4m3 [experts, rows,
    k / 16]; ``matrix_scales`` float32 [experts, runs], one for each of equal runs of rows."""

    codes: torch.Tensor
    scales: torch.Tensor
    matrix_scales: torch.Tensor

    @classmethod
    def of(
        cls, packed: torch.Tensor, scales: torch.Tensor, matrix_scales: torch.Tensor
    ) -> "Nvfp4Experts":
        """Order the bytes of a checkpoint. Raises ValueError if k is no multiple of 128."""
        if packed.shape[-1] % HALF.value:
            raise ValueError(f"NVFP4: {2 * packed.shape[-1]} columns are no multiple of 128")
        codes = torch.stack((packed & 15, packed >> 4), -1).flatten(-2)
        low, high = codes.unflatten(-1, (-1, 2, HALF.value)).unbind(-2)
        return cls((low | high << 4).flatten(-2), scales.contiguous(), matrix_scales.contiguous())

    @property
    def shape(self) -> tuple[int, int, int]:
        num_experts, rows, half = self.codes.shape
        return num_experts, rows, 2 * half

    @property
    def num_bytes(self) -> int:
        return self.codes.nbytes + self.scales.nbytes + self.matrix_scales.nbytes


@triton.jit
def scaled(b_code, b_scale, ROWS: tl.constexpr, DTYPE: tl.constexpr):
    """Twice the numbers of codes [ROWS, HALF] int32, times their groups' scales."""
    b_double = (DOUBLED >> ((b_code & 7) * 4)) & 15
    b_size = (b_double | TWO_TO_23).to(tl.float32, bitcast=True) - 8388608.0
    b_value = tl.where((b_code & 8) != 0, -b_size, b_size)
    b_value = tl.reshape(b_value, (ROWS, HALF // GROUP, GROUP)) * b_scale[:, :, None]
    return tl.reshape(b_value, (ROWS, HALF)).to(DTYPE)


@triton.jit
def add_nvfp4(b_sum, b_low, b_high, p_codes, p_scales, ROWS: tl.constexpr):
    """``b_sum`` plus inputs [rows, 64] of the low and of the high columns times weights, without
    half the matrix scale. ``p_codes`` and ``p_scales`` [ROWS, 1] begin at the 128 columns."""
    b_codes = tl.load(p_codes + tl.arange(0, HALF)[None, :]).to(tl.int32)
    o_group = tl.arange(0, HALF // GROUP)[None, :]
    b_scale = tl.load(p_scales + o_group).to(tl.float32)
    b_sum = dot(b_low, tl.trans(scaled(b_codes & 15, b_scale, ROWS, b_low.dtype)), b_sum)
    b_scale = tl.load(p_scales + HALF // GROUP + o_group).to(tl.float32)
    return dot(b_high, tl.trans(scaled(b_codes >> 4, b_scale, ROWS, b_low.dtype)), b_sum)
