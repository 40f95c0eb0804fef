"""The architecture (engine/gpu_arch.py) for which a kernel is launched."""

from functools import cache

import torch

from engine.gpu_arch import CPU, arch_number


def arch_of(x: torch.Tensor) -> int:
    """The architecture of the GPU that kernels on ``x`` run on; ``CPU`` in the interpreter."""
    return _current() if x.is_cuda else CPU


@cache
def _current() -> int:
    return arch_number(torch.cuda.get_device_capability())
