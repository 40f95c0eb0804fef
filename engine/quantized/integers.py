"""Unsigned integers of 4 or 8 bits, packed into int32 from the lowest bits on, and the values that
groups of columns give them.

    value[r, c] = (number[r, c] - zero[r, c // group]) * scale[r, c // group]
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Literal

import torch

from engine.quantized.format import require

GROUPS = (32, 64, 128)
"""Numbers of columns that may share a scale."""
MIN_GROUP = 32


def unpack(packed: torch.Tensor, bits: int, dim: int) -> torch.Tensor:
    """The numbers, int32, of an int32 matrix whose dimension ``dim`` (0 or 1) gets 32 / ``bits``
    times as long."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32, device=packed.device)
    if dim == 1:
        numbers = packed.unsqueeze(2) >> shifts
    else:
        numbers = packed.unsqueeze(1) >> shifts.unsqueeze(1)
    numbers = numbers.flatten(dim, dim + 1)
    return numbers.bitwise_and_((1 << bits) - 1)


class Grouped(ABC):
    """A format of matrices of such integers."""

    @property
    def kind(self) -> Literal["int4", "int8"] | None:
        """What kernels unpack it as; None for values that they do not compute with."""
        return "int4"

    @abstractmethod
    def integers(
        self, stored: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(numbers int32 [rows, k], zero points int32 and scales [rows, groups]); a ValueError says
        what the format cannot mean."""

    def values(self, stored: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The matrix in float32 [rows, k]."""
        numbers, zeros, scale = self.integers(stored)
        groups: torch.Tensor = numbers.unflatten(1, (scale.shape[1], -1))
        return ((groups - zeros.unsqueeze(-1)).float() * scale.float().unsqueeze(-1)).flatten(1)


def require_groups(columns: int, group: int, num_groups: int) -> None:
    """Raise ValueError unless ``num_groups`` groups of ``group`` columns are all of ``columns``."""
    require(
        columns == group * num_groups,
        f"{num_groups} scales per row for {columns} columns in groups of {group}",
    )
