"""Chooses the kernel set that computes a model on a device, and compiles its kernels ahead."""

import logging
from typing import Protocol

import torch

from engine.gpu_arch import arch_number
from engine.kernels.compiling import first_start
from engine.kernels.interface import Kernels
from engine.kernels.reference import ReferenceKernels
from engine.kernels.triton_support import unsupported
from engine.model.config import ModelConfig

log = logging.getLogger(__name__)


class Ahead(Protocol):
    """Kernels that are being compiled in the background."""

    def wait(self) -> None:
        """Wait until all are compiled."""

    def note(self) -> None:
        """Note the variants that were used, for the next start. Called once all have been used."""


class NothingAhead:
    """The ``Ahead`` of kernels that need no compilation."""

    def wait(self) -> None: ...

    def note(self) -> None: ...


def kernels_for(config: ModelConfig, dtype: torch.dtype, device: str, max_rows: int) -> Kernels:
    """Triton's kernels on CUDA for models that they support, else PyTorch's; logs the choice."""
    if device == "cpu":
        return ReferenceKernels()
    problem = unsupported(config, dtype)
    if problem:
        log.warning("PyTorch kernels on CUDA, slow: the Triton set does not support %s", problem)
        return ReferenceKernels()
    # Imported here: triton compiles for the GPU that is there, and a CPU has none.
    from engine.kernels.triton_set import TritonKernels

    kernels = TritonKernels(config, torch.device(device), max_rows)
    problem, name = kernels.pieces_problem, kernels.unmasked.name
    how = f"Triton ({problem})" if problem else f"Triton and {name}"
    log.info("attention of prompts behind deep contexts: %s", how)
    return kernels


def kernels_ahead(device: str, config: ModelConfig, what: object, *, spreads: bool) -> Ahead:
    """Begin to compile the kernels of an engine. The variants that it needs depend on ``config``,
    ``what`` and the GPU. ``spreads``: it takes part in spread steps."""
    if device == "cpu":
        return NothingAhead()
    from engine.kernels.compiling.compile_ahead import CompileAhead

    arch = arch_number(torch.cuda.get_device_capability())
    return CompileAhead(what, arch, first_start.notes(config, arch, spreads=spreads))
