"""Linear layers of rows in NVFP4, and plain ones behind them, against their values."""

import pytest
import torch

from engine.kernels.triton_dot import INTERPRETED
from engine.kernels.triton_fp8 import widened_rows
from engine.kernels.triton_linear import float_linear, stream_linear
from engine.kernels.triton_nvfp4 import widened_part
from engine.kernels.triton_rows import Tiles
from engine.model.matrix import Matrix
from engine.model.nvfp4_experts import Nvfp4Experts
from engine.quantized.nvfp4 import converted

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="for Triton's interpreter")


def matrix(rows: int, plain: int, columns: int) -> Matrix:
    """Random rows in NVFP4 with a matrix scale per 64 rows, and plain ones."""
    torch.manual_seed(rows)
    blocks = torch.randn(rows // 64, 64, columns) * torch.rand(rows // 64, 1, 1)
    packed, scales, matrix_scales = converted(blocks)
    own = Nvfp4Experts.of(
        packed.flatten(0, 1)[None], scales.flatten(0, 1)[None], matrix_scales[None]
    )
    return Matrix.of_packed(own, torch.randn(plain, columns).bfloat16())


@pytest.mark.parametrize("plain", [0, 48])
@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize("weights_first", [False, True])
def test_product(plain: int, splits: int, weights_first: bool) -> None:
    w = matrix(128, plain, 512)
    x = torch.randn(37, 512).bfloat16()
    tiles = Tiles(32, 64, 2, 4, weights_first)
    y = stream_linear(x, w, splits, tiles).float().sum(0)
    truth = x.float() @ w.dequantised().float().T
    assert (y - truth).norm() < 5e-3 * truth.norm()
    alone = stream_linear(x[5:6], w, splits, tiles).float().sum(0)
    assert torch.equal(alone[0], y[5])


def test_logits_of_the_first_ids() -> None:
    w, x = matrix(192, 0, 256), torch.randn(3, 256).bfloat16()
    out = torch.full((3, 150), torch.nan)
    assert float_linear(x, w, 150, out) is out
    truth = x.float() @ w.dequantised().float()[:150].T
    assert (out - truth).norm() < 5e-3 * truth.norm()


def test_dequantised_rows() -> None:
    w = matrix(128, 16, 256)
    assert w.packed is not None
    truth = w.dequantised()
    # The interpreter's conversion to bfloat16 cuts bits off.
    torch.testing.assert_close(widened_rows(w), truth, rtol=2**-7, atol=0)
    part = widened_part(w.packed, 64, 32, torch.bfloat16)
    torch.testing.assert_close(part, truth[64:96], rtol=2**-7, atol=0)
