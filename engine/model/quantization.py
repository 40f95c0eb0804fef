"""The quantization of a model in memory: which of its matrices are in FP8, NVFP4, int4 or int8.

Source: the official FP8 checkpoints of this family. A converted ``NAME.weight`` is e4m3, and
``NAME.weight_scale_inv`` holds what each block of 128 x 128 values is multiplied by.
"""

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

BLOCK = 128
PREFIX = re.compile(r"^(language_model\.)?(model\.)?(language_model\.)?")
"""What precedes the names of a text model's tensors, by the checkpoint's class and age."""
ONLY = {
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
    "weight_block_size": [BLOCK, BLOCK],
}
KEPT = (
    "lm_head", "embed_tokens", "linear_attn.in_proj_a", "linear_attn.in_proj_b",
    "linear_attn.in_proj_ba", "mlp.gate", "mlp.shared_expert_gate", "mtp",
)  # fmt: skip
"""Modules that the official conversion keeps in BF16, beside norms and convolutions."""
LM_HEAD = "lm_head.weight"
_BOUNDARY = r"(?:(?<=\.)|(?=\.|$))"
PackedKind = Literal["nvfp4", "int4", "int8"]
"""A format of several numbers to a word, which kernels unpack in registers."""


class PackedNames(dict[str, PackedKind]):
    """The formats of experts and matrices that a checkpoint stores packed, by name."""

    def __repr__(self) -> str:
        # NOTE: a model's fingerprint has this text, which names no formats.
        return repr(tuple(self))


@dataclass(frozen=True)
class Quantization:
    """Which matrices are in FP8. ``source`` none: no matrix. checkpoint: matrices that ``kept``
    does not name are stored in FP8. load: matrices that ``kept`` does not name are converted at
    load. ``nvfp4``: experts, and without FP8 all of those matrices, are rounded to NVFP4's values
    at load. ``lm_head``: it is converted at load too, to NVFP4 or else to FP8. ``packed``: the
    experts and matrices that the checkpoint stores in NVFP4, int4 or int8. ``packs``: these stay so
    in memory; otherwise they have the same values, and are plain."""

    source: Literal["none", "checkpoint", "load"] = "none"
    kept: tuple[str, ...] = ()
    nvfp4: bool = False
    lm_head: bool = False
    packed: PackedNames = field(default_factory=PackedNames, hash=False)
    packs: bool = field(default=False, repr=False)

    @classmethod
    def at_load(cls) -> "Quantization":
        """The official conversion, applied at load to a checkpoint that is not quantised."""
        return cls("load", KEPT)

    @classmethod
    def nvfp4_at_load(cls, *, has_experts: bool, lm_head: bool) -> "Quantization":
        """NVFP4 for experts, and FP8 for the other matrices that the official conversion converts.
        A model without experts gets NVFP4's values for all of these. ``lm_head``: NVFP4 for it."""
        return cls("load" if has_experts else "none", KEPT, nvfp4=True, lm_head=lm_head)

    @classmethod
    def read(cls, raw: Any, folder: Path) -> "Quantization":
        """Read ``quantization_config``; raises ValueError naming what is not supported."""
        if raw is None:
            return cls()
        where = f"in {folder / 'config.json'}"
        if not isinstance(raw, dict):
            raise ValueError(f"quantization_config: {raw!r} {where} is not an object")
        for name, only in ONLY.items():
            if (value := raw.get(name, only if name == "fmt" else None)) != only:
                raise ValueError(
                    f"quantization_config.{name}: {value!r} {where}; only {only!r} is supported"
                )
        kept: list[str] = []
        for name in ("modules_to_not_convert", "ignored_layers"):
            listed = raw.get(name) or []
            if not isinstance(listed, list) or not all(isinstance(each, str) for each in listed):
                raise ValueError(f"quantization_config.{name}: {listed!r} {where} is no list")
            kept += listed
        return cls("checkpoint", (*kept, "lm_head", "embed_tokens"))

    def drawn(self) -> "Quantization":
        """The quantization of dummy weights, which are drawn first and then converted."""
        return replace(self, source="load") if self.source == "checkpoint" else self

    def converts(self, name: str) -> bool:
        """True if the matrix of tensor ``name``, without the checkpoint's prefix, is in FP8.

        An entry of ``kept`` is a module, a part of the path from its beginning, or its end, as in
        transformers.
        """
        return self.source != "none" and self._is_large(name)

    def rounds(self, name: str) -> bool:
        """True if the matrix or the experts ``name``, without the checkpoint's prefix, are rounded
        to NVFP4's values at load. A matrix that ``converts`` is not."""
        return self.nvfp4 and (self._is_large(name) or (self.lm_head and name == LM_HEAD))

    @property
    def fp8_lm_head(self) -> bool:
        """True if ``lm_head`` is converted to FP8 at load."""
        return self.lm_head and not self.nvfp4

    def keeps_packed(self, name: str) -> bool:
        """True if the experts or the matrix ``name``, unless it ``converts``, are packed."""
        return self.packs and (name in self.packed or self.rounds(name))

    def kind(self, name: str) -> PackedKind:
        """What the experts or the matrix ``name`` are in if they are packed."""
        return self.packed.get(name, "nvfp4")

    def _is_large(self, name: str) -> bool:
        module = name.removesuffix(".weight")
        return not any(_names(PREFIX.sub("", entry), module) for entry in self.kept)


def _names(entry: str, module: str) -> bool:
    """True if an entry names the module. Entries may be regular expressions, as in transformers; an
    invalid expression is compared as text."""
    try:
        begins = re.match(rf"(?:{entry}){_BOUNDARY}", module) is not None
    except re.error:
        begins = module == entry or module.startswith(f"{entry}.")
    return begins or module.endswith(entry)
