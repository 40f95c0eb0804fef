"""The kernel variants that a first start compiles; ``python -m engine.kernels.compiling.first_start
bf16=FILE fp8=FILE fp8=FILE`` writes those of the kinds that it names.

If no start has noted yet which variants of the kernels it needs (variants.py), it compiles the
variants in ``first_start.json`` ahead. Each FILE is the note of a start of the full-size model,
with such weights, on a GPU (``baton-variants-*.json``). ``python -m tests.engine.start_notes`` adds
those of other decode steps. Another number of state slots needs some other variants. The slowest to
compile come first: to order them, they are compiled here, without a GPU, into an empty
TRITON_CACHE_DIR.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from engine.kernels.compiling.variants import Variants
from engine.model.config import ModelConfig

FILE = Path(__file__).with_name("first_start.json")
SAVE_S = 1_200.0
"""The longest time that compiling all takes, on few cores."""
MODEL = {
    "vocab_size": 248320, "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 2,
    "linear_num_key_heads": 16, "linear_num_value_heads": 32, "num_experts": 256,
    "num_experts_per_tok": 8, "moe_intermediate_size": 512,
}  # fmt: skip
"""The model whose variants are noted."""
Kind = Literal["bf16", "fp8", "nvfp4", "bf16-spread", "fp8-spread"]
"""What variants are for: weights of this type. ``nvfp4``: only what experts in NVFP4 need beside
the other matrices' kind; ``-spread``: only what members of spread groups and lenders need."""


def notes(config: ModelConfig, arch: int, *, spreads: bool) -> tuple[str, ...]:
    """The notes of what a start with this model and GPU (90: Hopper) compiles; none for a model or
    GPU that was not noted. ``spreads``: the worker takes part in spread steps."""
    if not config.is_hybrid_moe:
        return ()
    parts = config, config.attention, config.deltanet, config.moe
    found = {name: value for part in parts for name, value in vars(part).items()}
    if any(found[name] != value for name, value in MODEL.items()):
        return ()
    is_plain = config.quantization.source == "none"
    wanted: list[Kind] = ["bf16" if is_plain else "fp8"]
    if spreads:
        wanted.append("bf16-spread" if is_plain else "fp8-spread")
    if config.quantization.packs and {"nvfp4"}.issuperset(config.quantization.packed.values()):
        wanted.append("nvfp4")
    return read(arch, *wanted)


def read(arch: int, *wanted: Kind) -> tuple[str, ...]:
    """The notes of these kinds."""
    shipped = json.loads(FILE.read_text())
    if shipped["arch"] != arch:
        return ()
    return tuple(
        json.dumps(each["note"])
        for each in shipped["variants"]
        if not set(wanted).isdisjoint(each["for"])
    )


def kinds() -> dict[str, list[str]]:
    """Each note, and the kinds that it is for."""
    shipped = json.loads(FILE.read_text())
    return {json.dumps(each["note"]): each["for"] for each in shipped["variants"]}


def save(wanted: Mapping[str, Sequence[str]], arch: int) -> None:
    """Write notes, and the kinds that each is for, to ``first_start.json``."""
    from engine.kernels.compiling.compile_variants import compile_all

    ordered = compile_all(tuple(wanted), arch, SAVE_S)
    rows: list[dict[str, Any]] = [
        {"for": list(wanted[note]), "note": json.loads(note)} for note in ordered
    ]
    lines = ",\n".join(json.dumps(row) for row in rows)
    FILE.write_text(f'{{"arch": {arch}, "variants": [\n{lines}\n]}}\n')
    print(f"{len(ordered)} of {len(wanted)} variants compile and are in {FILE.name}")


def write(noted: Mapping[str, Sequence[Variants]]) -> None:
    """Write the notes of starts, by kind, to ``first_start.json``; those of other kinds stay."""
    (arch,) = {variants.arch for starts in noted.values() for variants in starts}
    wanted: dict[str, list[str]] = {}
    for note, earlier in kinds().items():
        if kept := [kind for kind in earlier if kind not in noted]:
            wanted[note] = kept
    for kind, starts in noted.items():
        for note in dict.fromkeys(note for variants in starts for note in variants.notes):
            wanted.setdefault(note, []).append(kind)
    save(wanted, arch)


if __name__ == "__main__":
    given: dict[str, list[Variants]] = {}
    for argument in sys.argv[1:]:
        kind, file = argument.split("=", 1)
        given.setdefault(kind, []).append(Variants.read(Path(file)))
    write(given)
