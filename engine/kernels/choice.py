"""Which kernel set computes a model on a device."""

import logging

import torch

from engine.kernels.interface import Kernels
from engine.kernels.reference import ReferenceKernels
from engine.kernels.triton_support import unsupported
from engine.model.config import ModelConfig

log = logging.getLogger(__name__)


def kernels_for(config: ModelConfig, dtype: torch.dtype, device: str, max_rows: int) -> Kernels:
    """Triton's on CUDA for the models that it supports, else PyTorch's; logs which, and why."""
    if device == "cpu":
        return ReferenceKernels()
    problem = unsupported(config, dtype)
    if problem:
        log.warning("PyTorch kernels on CUDA, slow: the Triton set does not do %s", problem)
        return ReferenceKernels()
    # Imported here: triton compiles for the GPU that is there, and a CPU has none.
    from engine.kernels.triton_set import TritonKernels

    return TritonKernels(config, torch.device(device), max_rows)
