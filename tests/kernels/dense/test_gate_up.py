"""The first half of a dense MLP against plain PyTorch, at odd shapes."""

import pytest
import torch

from engine.kernels.dense.triton_gate_up import gate_up
from engine.kernels.experts.torch_experts import gate_mul
from engine.model.layers import Activation
from engine.model.matrix import Matrix
from tests.kernels.closeness import relative_error

BOUND = {torch.float32: 2e-3 if torch.cuda.is_available() else 1e-5, torch.bfloat16: 8e-3}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize(("num_tokens", "k", "dim"), [(1, 192, 64), (17, 64, 320), (65, 128, 192)])
def test_gate_up(
    num_tokens: int,
    k: int,
    dim: int,
    activation: Activation,
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    x = torch.randn(num_tokens, k, device=device).to(dtype)
    w = (torch.randn(2 * dim, k, device=device) * 3 * k**-0.5).to(dtype)
    truth = gate_mul(x.float() @ w.float().t(), activation)
    found = gate_up(x, Matrix.of(w), activation)
    assert found.shape == (num_tokens, dim)
    assert relative_error(found, truth) < BOUND[dtype]


def test_a_token_does_not_depend_on_the_others(device: torch.device) -> None:
    x = torch.randn(64, 128, device=device).bfloat16()
    w = Matrix.of(torch.randn(2 * 128, 128, device=device).bfloat16())
    whole = gate_up(x, w, "silu")
    for first, num in ((0, 1), (5, 16), (30, 33)):
        assert torch.equal(gate_up(x[first : first + num], w, "silu"), whole[first : first + num])
