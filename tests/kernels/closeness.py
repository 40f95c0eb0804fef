"""How tests compare a kernel with the truth."""

import torch


def relative_error(out: torch.Tensor, truth: torch.Tensor) -> float:
    """|out - truth| / |truth|; NaN in either fails any bound."""
    out, truth = out.double(), truth.double()
    return float((out - truth).norm() / truth.norm())
