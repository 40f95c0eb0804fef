"""Linear layers of rows in NVFP4, and plain ones behind them, against their values."""

import pytest
import torch

from engine.kernels.dense import triton_linear
from engine.kernels.dense.triton_linear import MAX_STREAMED, float_linear, stream_linear
from engine.kernels.dense.triton_rows import Tiles
from engine.kernels.formats.triton_fp8 import widened_rows
from engine.kernels.formats.triton_nvfp4 import widened_part
from engine.model.matrix import Matrix
from engine.model.nvfp4_experts import Nvfp4Experts
from engine.quantized.nvfp4 import converted

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def matrix(rows: int, plain: int, columns: int) -> Matrix:
    """Random rows in NVFP4 with a matrix scale per 64 rows, and plain ones."""
    torch.manual_seed(rows)
    blocks = torch.randn(rows // 64, 64, columns) * torch.rand(rows // 64, 1, 1)
    packed, scales, matrix_scales = converted(blocks)
    own = Nvfp4Experts.of(
        packed.flatten(0, 1)[None].to(DEVICE),
        scales.flatten(0, 1)[None].to(DEVICE),
        matrix_scales[None].to(DEVICE),
    )
    return Matrix.of_packed(own, draw(plain, columns))


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(shape).bfloat16().to(DEVICE)


@pytest.mark.parametrize("plain", [0, 48])
@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize("weights_first", [False, True])
def test_product(plain: int, splits: int, weights_first: bool) -> None:
    w = matrix(128, plain, 512)
    x = draw(37, 512)
    tiles = Tiles(32, 64, 2, 4, weights_first)
    y = stream_linear(x, w, splits, tiles).float().sum(0)
    truth = x.float() @ w.dequantised().float().T
    assert (y - truth).norm() < 5e-3 * truth.norm()
    alone = stream_linear(x[5:6], w, splits, tiles).float().sum(0)
    assert torch.equal(alone[0], y[5])


# Only cuBLAS, which computes more rows than that, has float32 sums of bfloat16 operands.
@pytest.mark.parametrize("num_tokens", [3, 40] + [MAX_STREAMED + 1] * (DEVICE == "cuda"))
def test_logits_of_the_first_ids(num_tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_linear, "WIDENED_AT_ONCE", 128)
    w, x = matrix(192, 0, 256), draw(num_tokens, 256)
    out = torch.full((num_tokens, 160), torch.nan, device=DEVICE)[:, :150]
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
