"""Filters of rows for the tests of their kernels, and what the reference keeps."""

import torch

from engine.kernels.sampling import torch_sampling

Settings = list[tuple[float, int, float, float]]
"""Of each row or state slot: temperature, top_k, top_p, min_p."""


def tables(settings: Settings, device: torch.device) -> tuple[torch.Tensor, ...]:
    """The four settings as columns among others, as in the sampler's tables."""
    floats = torch.full((len(settings), 5), float("nan"), device=device)
    ints = torch.full((len(settings), 3), -1, dtype=torch.int64, device=device)
    floats[:, [0, 2, 3]] = torch.tensor([[t, p, m] for t, _, p, m in settings], device=device)
    ints[:, 1] = torch.tensor([k for _, k, _, _ in settings], device=device)
    return floats[:, 0], ints[:, 1], floats[:, 2], floats[:, 3]


def truth(logits: torch.Tensor, settings: Settings, *, short: bool) -> torch.Tensor:
    """The lowest logit / temperature that each row keeps. ``short``: every top_k is."""
    temperature, top_k, top_p, min_p = tables(settings, logits.device)
    scaled = logits / temperature.unsqueeze(1)
    return torch_sampling.threshold(scaled, top_k, top_p, min_p, short=short)


def assert_same(found: torch.Tensor, expected: torch.Tensor, settings: Settings) -> None:
    """Equal, but for the last bit of min_p's logarithm."""
    exact = torch.tensor([m == 0.0 for *_, m in settings], device=found.device)
    assert torch.equal(found[exact], expected[exact])
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
