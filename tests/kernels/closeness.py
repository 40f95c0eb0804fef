"""How tests compare a kernel with the truth."""

import torch

from engine.kernels.formats.triton_split import Split


def relative_error(out: torch.Tensor, truth: torch.Tensor) -> float:
    """|out - truth| / |truth|; NaN in either fails any bound."""
    out, truth = out.double(), truth.double()
    return float((out - truth).norm() / truth.norm())


def same_split(a: Split, b: Split) -> bool:
    return torch.equal(a.q.view(torch.uint8), b.q.view(torch.uint8)) and torch.equal(a.s, b.s)
