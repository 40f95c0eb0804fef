"""GPTQ checkpoints without act-order: four-bit integers with zero points.

    NAME.qweight  int32 [k / 8, rows]            NAME.scales  float16 [k / group, rows]
    NAME.qzeros   int32 [k / group, rows / 8]    NAME.g_idx   int32 [k], the group of each column

Zero points are stored less one, modulo 16, unless ``checkpoint_format`` is ``gptq_v2``.

Source: github.com/AutoGPTQ/AutoGPTQ, ``nn_modules/qlinear``, and github.com/ModelCloud/GPTQModel.
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


@dataclass(frozen=True)
class Gptq(Grouped):
    """Matrices of such a checkpoint, with ``group`` columns per scale; ``zero_offset`` is added to
    stored zero points."""

    group: int
    zero_offset: int
    whole: str = ".weight"

    @property
    def parts(self) -> tuple[Part, ...]:
        return (
            Part("numbers", ".qweight", ("I32",)),
            Part("zeros", ".qzeros", ("I32",)),
            Part("scale", ".scales", SCALES),
            Part("groups", ".g_idx", ("I32",), optional=True),
        )

    def shape(self, stored: Mapping[str, Shape]) -> Shape:
        words, rows = stored["numbers"]
        num_groups, columns = stored["scale"][0], words * PER_WORD
        require_groups(columns, self.group, num_groups)
        require(
            stored["scale"] == (num_groups, rows)
            and stored["zeros"] == (num_groups, rows // PER_WORD)
            and stored.get("groups", (columns,)) == (columns,),
            f"shapes {dict(stored)} do not fit each other",
        )
        return rows, columns

    def integers(
        self, stored: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        numbers = unpack(stored["numbers"], BITS, 0).t()
        if (groups := stored.get("groups")) is not None:
            ascending = torch.arange(numbers.shape[1], device=groups.device) // self.group
            require(
                bool((groups == ascending).all()),
                "g_idx is not in the order of the columns: act-order is not supported",
            )
        zeros = unpack(stored["zeros"], BITS, 1).t() + self.zero_offset & (1 << BITS) - 1
        return numbers, zeros, stored["scale"].t()


def read(raw: dict[str, Any], folder: Path) -> Stored:
    """Read the configuration; a ValueError names what is not supported."""
    config = Config(raw, folder)
    config.one_of("bits", BITS)
    config.one_of("desc_act", False, default=False)
    config.one_of("pack_dtype", "int32", default="int32")
    version = config.one_of("checkpoint_format", "gptq", "gptq_v2", default="gptq")
    if raw.get("dynamic"):
        raise config.refusal("dynamic", raw["dynamic"], (None,))
    group = config.one_of("group_size", *GROUPS)
    return Stored("int4 (GPTQ)", (Gptq(group, zero_offset=int(version == "gptq")),))
