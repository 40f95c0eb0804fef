"""Which kernel set computes a model on a device, and whether it has to be compiled."""

import logging
from typing import Protocol

import torch

from engine.kernels import first_start
from engine.kernels.interface import Kernels
from engine.kernels.reference import ReferenceKernels
from engine.kernels.triton_support import unsupported
from engine.model.config import ModelConfig

log = logging.getLogger(__name__)


class Ahead(Protocol):
    """Kernels that are compiled while something else is done."""

    def wait(self) -> None:
        """Until they are."""

    def note(self) -> None:
        """Every kernel has been used: note for the next start which there are."""


class NothingAhead:
    """Of kernels that are not compiled."""

    def wait(self) -> None: ...

    def note(self) -> None: ...


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


def kernels_ahead(device: str, config: ModelConfig, what: object) -> Ahead:
    """Begin to compile the kernels of an engine; which variants of them it needs depends on
    ``config``, ``what`` and the GPU."""
    if device == "cpu":
        return NothingAhead()
    from engine.kernels.compile_ahead import CompileAhead

    major, minor = torch.cuda.get_device_capability()
    arch = 10 * major + minor
    return CompileAhead(what, arch, first_start.notes(config, arch))
