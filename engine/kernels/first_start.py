"""The kernel variants that a first start compiles; ``python -m engine.kernels.first_start
bf16=FILE fp8=FILE fp8=FILE`` writes those of the kinds of weights that it names.

If no start has noted yet which variants of the kernels it needs (variants.py), it compiles the
variants in ``first_start.json`` ahead. Each FILE is the note of a start of the full-size model,
with such weights, on a GPU (``baton-variants-*.json``). Workers of other roles, or with another
number of state slots, need some other variants. The slowest to compile come first: to order them,
they are compiled here, without a GPU, into an empty TRITON_CACHE_DIR.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from engine.kernels.variants import Variants
from engine.model.config import ModelConfig

FILE = Path(__file__).with_name("first_start.json")
MODEL = {
    "vocab_size": 248320, "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 2,
    "linear_num_key_heads": 16, "linear_num_value_heads": 32, "num_experts": 256,
    "num_experts_per_tok": 8, "moe_intermediate_size": 512,
}  # fmt: skip
"""The model whose variants are noted."""
Weights = Literal["bf16", "fp8", "nvfp4"]
"""A kind of weights. ``nvfp4``: only what experts in NVFP4 need beside the other matrices' kind."""


def notes(config: ModelConfig, arch: int) -> tuple[str, ...]:
    """The notes of what a start with this model and GPU (90: Hopper) compiles; none for a model or
    GPU that was not noted."""
    if not config.is_hybrid_moe:
        return ()
    parts = config, config.attention, config.deltanet, config.moe
    found = {name: value for part in parts for name, value in vars(part).items()}
    if any(found[name] != value for name, value in MODEL.items()):
        return ()
    weights: Weights = "bf16" if config.quantization.source == "none" else "fp8"
    noted = {"nvfp4"}.issuperset(config.quantization.packed.values())
    nvfp4 = config.quantization.packs and noted
    return read(arch, weights, "nvfp4") if nvfp4 else read(arch, weights)


def read(arch: int, *weights: Weights) -> tuple[str, ...]:
    """The notes of starts with weights of these kinds."""
    shipped = json.loads(FILE.read_text())
    if shipped["arch"] != arch:
        return ()
    wanted = set(weights)
    return tuple(
        json.dumps(each["note"])
        for each in shipped["variants"]
        if not wanted.isdisjoint(each["for"])
    )


def write(noted: Mapping[str, Sequence[Variants]]) -> None:
    """Write the notes of starts, by kind of weights, to ``first_start.json``; those of other kinds
    stay."""
    from engine.kernels.compile_variants import compile_all

    (arch,) = {variants.arch for starts in noted.values() for variants in starts}
    wanted: dict[str, list[str]] = {}
    for each in json.loads(FILE.read_text())["variants"]:
        if kept := [kind for kind in each["for"] if kind not in noted]:
            wanted[json.dumps(each["note"])] = kept
    for weights, starts in noted.items():
        for note in dict.fromkeys(note for variants in starts for note in variants.notes):
            wanted.setdefault(note, []).append(weights)
    ordered = compile_all(tuple(wanted), arch)
    rows: list[dict[str, Any]] = [
        {"for": wanted[note], "note": json.loads(note)} for note in ordered
    ]
    lines = ",\n".join(json.dumps(row) for row in rows)
    FILE.write_text(f'{{"arch": {arch}, "variants": [\n{lines}\n]}}\n')
    print(f"{len(ordered)} of {len(wanted)} variants compile and are in {FILE.name}")


if __name__ == "__main__":
    given: dict[str, list[Variants]] = {}
    for argument in sys.argv[1:]:
        weights, file = argument.split("=", 1)
        given.setdefault(weights, []).append(Variants.read(Path(file)))
    write(given)
