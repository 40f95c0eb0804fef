"""The mask of constrained rows, beside its PyTorch reference."""

import pytest
import torch

from engine.kernels.sampling.torch_sampling import masked
from engine.kernels.sampling.triton_mask import mask_logits


@pytest.mark.parametrize("num_ids", [1, 31, 33, 700, 4_100])
def test_the_reference(num_ids: int, device: torch.device) -> None:
    logits = torch.randn(5, num_ids + 3)[:, :num_ids]
    bits = torch.randint(-(2**31), 2**31, (2, -(-num_ids // 32)), dtype=torch.int32)
    expected = masked(logits, (3, 1), bits)
    found = logits.to(device)
    mask_logits(found, (3, 1), bits.to(device))
    assert torch.equal(found.cpu(), expected)
    assert torch.equal(found[0].cpu(), logits[0])


def test_ids_past_the_bits_are_left_alone(device: torch.device) -> None:
    logits = torch.zeros(1, 40, device=device)
    mask_logits(logits, (0,), torch.zeros(1, 1, dtype=torch.int32, device=device))
    assert logits[0, :32].isinf().all()
    assert not logits[0, 32:].isinf().any()
