"""Errors of the engine, one branch of the tree in transport/wire/errors.py.

BatonError
├── GpuMemoryHeld        other processes hold GPU memory that the model needs;
└── CheckpointError      a model folder cannot be served as it is (also a ValueError).
"""

from transport.wire.errors import BatonError


class GpuMemoryHeld(BatonError):
    """The model fits on the GPU, but not in the memory that other processes leave free now."""


class CheckpointError(BatonError, ValueError):
    """A checkpoint's files or tensors are not what its config says; the message names the file or
    tensor."""
