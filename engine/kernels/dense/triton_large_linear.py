"""Linear layers of more tokens than the streaming kernels take, by cuBLAS.

If there are enough rows in FP8, they are multiplied on FP8 tensor cores, with activations quantised
per token and 128 columns; a few rows are dequantised.

Reference: x @ Matrix.dequantised().T; test: tests/gpu/test_fp8.py.
"""

import torch
import torch.nn.functional as F
from torch.nn.functional import ScalingType

from engine.kernels.formats.triton_fp8 import widened_rows
from engine.kernels.formats.triton_quantise import Quantised, quantise_rows
from engine.model.matrix import Matrix

MIN_FP8_ROWS = 2048
"""With fewer rows, quantising the activations costs as much as the faster product saves."""
LEAST_FP8_ROWS = 1024
"""The same if the activations have been quantised already. Fewer rows were not measured."""


def large_linear(x: torch.Tensor, w: Matrix, quantised: Quantised | None = None) -> torch.Tensor:
    """``x @ w.T`` [tokens, rows] in ``x``'s dtype, rows of the result contiguous. ``quantised``:
    ``x`` in FP8, if it has been made already."""
    if w.num_fp8 < (MIN_FP8_ROWS if quantised is None else LEAST_FP8_ROWS):
        return F.linear(x, widened_rows(w))
    quantised = quantised or quantise_rows(x)
    assert quantised.is_of_rows(x)
    (num_tokens, _), (num_rows, _) = x.shape, w.shape
    y = torch.empty((quantised.q.shape[0], num_rows), dtype=x.dtype, device=x.device)
    _fp8_product(quantised, w, y[:, : w.num_fp8])
    y = y[:num_tokens]
    if w.num_fp8 < num_rows:
        torch.mm(x, w.plain.t(), out=y[:, w.num_fp8 :])
    return y


def _fp8_product(x: Quantised, w: Matrix, out: torch.Tensor) -> None:
    """Write the product with FP8 rows to ``out`` [padded, FP8 rows]; padding is undefined."""
    by_token, by_block = ScalingType.BlockWise1x128.value, ScalingType.BlockWise128x128.value
    torch.ops.aten._scaled_mm_v2.out(
        x.q, w.fp8.t(), [x.scales], [by_token], [], [w.scales.t()], [by_block], [], None, out.dtype,
        out=out,
    )  # fmt: skip
