"""Linear layers of more tokens than the streaming kernels take: cuBLAS.

Rows in FP8 are multiplied on FP8 tensor cores, with activations quantised a token's 128 columns at
a time, where there are enough of them; a few are dequantised.
"""

import torch
import torch.nn.functional as F
from torch.nn.functional import ScalingType

from engine.kernels.triton_fp8 import widened_rows
from engine.kernels.triton_quantise import quantise_rows
from engine.model.matrix import Matrix

MIN_FP8_ROWS = 2048
"""With fewer, quantising the activations costs what the faster product gains."""
ALIGNMENT = 16
"""Tokens are padded to a multiple: cuBLAS's condition on scales."""


def large_linear(x: torch.Tensor, w: Matrix) -> torch.Tensor:
    """``x @ w.T`` [tokens, rows] in ``x``'s dtype, rows of the result contiguous."""
    if w.num_fp8 < MIN_FP8_ROWS:
        return F.linear(x, widened_rows(w))
    (num_tokens, _), (num_rows, _) = x.shape, w.shape
    padded = -(-num_tokens // ALIGNMENT) * ALIGNMENT
    y = torch.empty((padded, num_rows), dtype=x.dtype, device=x.device)
    _fp8_product(x, w, y[:, : w.num_fp8])
    y = y[:num_tokens]
    if w.num_fp8 < num_rows:
        torch.mm(x, w.plain.t(), out=y[:, w.num_fp8 :])
    return y


def _fp8_product(x: torch.Tensor, w: Matrix, out: torch.Tensor) -> None:
    """Into ``out`` [tokens, padded, FP8 rows]; what is there for padding is undefined."""
    q, scales = quantise_rows(x, out.shape[0])
    by_token, by_block = ScalingType.BlockWise1x128.value, ScalingType.BlockWise128x128.value
    torch.ops.aten._scaled_mm_v2.out(
        q, w.fp8.t(), [scales], [by_token], [], [w.scales.t()], [by_block], [], None, out.dtype,
        out=out,
    )  # fmt: skip
