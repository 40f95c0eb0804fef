"""AWQ checkpoints in AutoAWQ's ``gemm`` layout: four-bit integers with zero points.

    NAME.qweight  int32 [k, rows / 8]            NAME.scales  float16 [k / group, rows]
    NAME.qzeros   int32 [k / group, rows / 8]

The eight rows of an int32 are stored in the order 0, 2, 4, 6, 1, 3, 5, 7, from the lowest bits on.

Source: github.com/casper-hansen/AutoAWQ, ``awq/modules/linear/gemm.py``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from engine.quantized.config import Config
from engine.quantized.format import SCALES, Part, Shape, Stored, require
from engine.quantized.integers import GROUPS, Grouped, require_groups, unpack

BITS, PER_WORD = 4, 8
PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where rows 0 to 7 of an int32 are."""


@dataclass(frozen=True)
class Awq(Grouped):
    """Matrices of such a checkpoint, with ``group`` columns per scale."""

    group: int
    whole: str = ".weight"

    @property
    def parts(self) -> tuple[Part, ...]:
        return (
            Part("numbers", ".qweight", ("I32",)),
            Part("zeros", ".qzeros", ("I32",)),
            Part("scale", ".scales", SCALES),
        )

    def shape(self, stored: Mapping[str, Shape]) -> Shape:
        columns, words = stored["numbers"]
        num_groups, rows = stored["scale"]
        require_groups(columns, self.group, num_groups)
        require(
            rows == words * PER_WORD and stored["zeros"] == (num_groups, words),
            f"shapes {dict(stored)} do not fit each other",
        )
        return rows, columns

    def integers(
        self, stored: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        scale = stored["scale"].t()
        return _rows(stored["numbers"]), _rows(stored["zeros"]), scale


def read(raw: dict[str, Any], folder: Path) -> Stored:
    """Read the configuration; a ValueError names what is not supported."""
    config = Config(raw, folder)
    config.one_of("bits", BITS)
    config.one_of("version", "gemm", "GEMM", default="gemm")
    config.one_of("zero_point", True, default=True)
    return Stored("int4 (AWQ)", (Awq(config.one_of("group_size", *GROUPS)),))


def _rows(packed: torch.Tensor) -> torch.Tensor:
    """The numbers [rows, k] of packed ones [k, rows / 8]."""
    words: torch.Tensor = unpack(packed, BITS, 1).unflatten(1, (-1, PER_WORD))
    return words.index_select(2, torch.tensor(PLACES, device=packed.device)).flatten(1).t()
