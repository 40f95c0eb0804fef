"""Errors of the engine, one branch of the tree in transport/wire/errors.py.

BatonError
└── CheckpointError      a model folder that cannot be served as it is (also a ValueError)
"""

from transport.wire.errors import BatonError


class CheckpointError(BatonError, ValueError):
    """A checkpoint's files or tensors are not what its config says; the message names the file or
    tensor."""
