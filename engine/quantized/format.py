"""The form in which a checkpoint stores quantised matrices, each as several tensors.

Every format here is read by computing the matrix's values: the model gets plain weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

Shape = tuple[int, ...]
SCALES = ("F32", "BF16", "F16")
"""Stored dtypes of scales."""


@dataclass(frozen=True)
class Part:
    """One stored tensor of a matrix. ``suffix`` follows the name of the module, or of the parameter
    if the matrix is no module's ``weight``."""

    key: str
    suffix: str
    dtypes: tuple[str, ...]
    optional: bool = False


class Format(Protocol):
    """A layout of quantised matrices; a frozen dataclass, because its repr enters the model's
    fingerprint."""

    @property
    def parts(self) -> tuple[Part, ...]:
        """The tensors of a matrix; the first one holds the quantised values."""
        ...

    @property
    def whole(self) -> str:
        """Suffix of the matrix in a checkpoint that is not quantised: ``.weight``, or nothing."""
        ...

    def shape(self, stored: Mapping[str, Shape]) -> Shape:
        """Shape of the matrix whose parts have these shapes, by ``Part.key``; a ValueError says
        what does not fit."""
        ...

    def values(self, stored: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The matrix in float32, on the device of its parts; a ValueError says what the format
        cannot mean."""
        ...


@dataclass(frozen=True)
class Stored:
    """How a checkpoint stores its matrices. ``name``: for logs and errors. A matrix is in the first
    of ``formats`` whose parts are there. Tensors that end in one of ``ignored`` are not used."""

    name: str = "plain"
    formats: tuple[Format, ...] = ()
    ignored: tuple[str, ...] = ()


PLAIN = Stored()
"""A checkpoint without quantised matrices, or with matrices that stay in FP8."""


def require(condition: bool, message: str) -> None:
    """Raise ValueError(``message``) unless ``condition``."""
    if not condition:
        raise ValueError(message)
