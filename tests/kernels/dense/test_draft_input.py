"""What enters the draft layer, against the PyTorch set."""

import pytest
import torch

from engine.kernels.dense.triton_draft_input import draft_input
from engine.kernels.reference import ReferenceKernels
from tests.kernels.closeness import relative_error

EPS = 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("num_tokens", "dim"), [(1, 64), (5, 72), (300, 16)])
def test_draft_input(num_tokens: int, dim: int, dtype: torch.dtype, device: torch.device) -> None:
    embed = torch.randn(19, dim, device=device).to(dtype)
    hidden = torch.randn(num_tokens, dim, device=device).to(dtype)
    norms = 1 + torch.rand(2, dim, device=device)
    ids = torch.randint(0, 19, (num_tokens,), device=device)
    found = draft_input(ids, embed, hidden, norms[0], norms[1], EPS)
    truth = ReferenceKernels().draft_input(ids, embed, hidden, norms[0], norms[1], EPS).tensor
    assert found.dtype == dtype
    assert relative_error(found, truth) < (1e-6 if dtype == torch.float32 else 8e-3)


def test_no_token(device: torch.device) -> None:
    nothing = torch.empty(0, 64, device=device)
    ids = torch.empty(0, dtype=torch.int64, device=device)
    norm = torch.ones(64, device=device)
    assert draft_input(ids, nothing, nothing, norm, norm, EPS).shape == (0, 128)
