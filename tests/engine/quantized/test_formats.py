"""Checkpoints in each quantised format, against float32 checkpoints with the same values."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.loading import checkpoint as checkpoints
from engine.loading import weights
from engine.model.model import Model
from engine.model.quantization import PackedNames, Quantization
from engine.model.registry import build, read_config
from tests.engine.checkpoints import checkpoint, with_draft_layer
from tests.engine.driver import GREEDY, Driver, Request, load_engine
from tests.engine.loading.test_fp8_weights import PROMPT, answer, matrices
from tests.engine.quantized.checkpoints import (
    Writer,
    awq,
    compressed_nvfp4,
    gptq,
    modelopt_fp8,
    modelopt_nvfp4,
    pack_quantized,
    per_row,
    quantised,
)

E4M3 = torch.float8_e4m3fn
NVFP4_ARGS = {
    "num_bits": 4, "type": "float", "symmetric": True, "strategy": "tensor_group",
    "group_size": 16, "dynamic": False,
}  # fmt: skip
FP8_ARGS = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"}
DYNAMIC = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}
MIXED_LAYERS = {
    "model.layers.0.mlp.experts": {"quant_algo": "W4A16_NVFP4", "group_size": 16},
    "model.layers.3.self_attn.q_proj": {"quant_algo": "FP8"},
}


def compressed(format: str, *schemes: dict[str, Any]) -> dict[str, Any]:
    """A ``quantization_config`` of compressed-tensors with a group of modules per scheme."""
    groups = {f"group_{i}": {"targets": ["Linear"]} | each for i, each in enumerate(schemes)}
    return {"quant_method": "compressed-tensors", "format": format, "config_groups": groups}


def integers(bits: int, group: int | None, *, symmetric: bool = True) -> dict[str, Any]:
    strategy = "group" if group else "channel"
    args = {"num_bits": bits, "type": "int", "symmetric": symmetric, "dynamic": False}
    return {"weights": args | {"strategy": strategy, "group_size": group, "actorder": None}}


@dataclass(frozen=True)
class Form:
    """A format: how matrices are written, and the ``quantization_config``."""

    write: Callable[[str], Writer | None]
    config: dict[str, Any]
    of: str = "per_expert"


def _mixed(module: str) -> Writer:
    return modelopt_fp8 if "attn" in module else modelopt_nvfp4


def _two_groups(module: str) -> Writer:
    return per_row(E4M3) if "attn" in module else compressed_nvfp4


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True}
MODELOPT = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
FORMS = {
    "modelopt": Form(lambda _: modelopt_nvfp4, MODELOPT | {"kv_cache_scheme": {"num_bits": 8}}),
    "modelopt-fused": Form(lambda _: modelopt_nvfp4, MODELOPT, "multimodal"),
    "modelopt-mixed": Form(
        _mixed, MODELOPT | {"quant_algo": "MIXED_PRECISION", "quantized_layers": MIXED_LAYERS}
    ),
    "compressed-nvfp4": Form(
        lambda _: compressed_nvfp4,
        compressed(
            "nvfp4-pack-quantized",
            {"weights": NVFP4_ARGS, "input_activations": NVFP4_ARGS | {"dynamic": "local"}},
        ),
    ),
    "compressed-two-groups": Form(
        _two_groups,
        compressed("mixed-precision", {"weights": NVFP4_ARGS}, {"weights": FP8_ARGS}),
    ),
    "int4": Form(
        lambda _: pack_quantized(4, 32, symmetric=True),
        compressed("pack-quantized", integers(4, 32)),
    ),
    "int4-zero-points": Form(
        lambda _: pack_quantized(4, 32, symmetric=False),
        compressed("pack-quantized", integers(4, 32, symmetric=False)),
    ),
    "int8-packed": Form(
        lambda _: pack_quantized(8, None, symmetric=True),
        compressed("pack-quantized", integers(8, None)),
    ),
    "int8": Form(lambda _: per_row(torch.int8), compressed("int-quantized", integers(8, None))),
    "fp8": Form(
        lambda _: per_row(E4M3),
        compressed("float-quantized", {"weights": FP8_ARGS, "input_activations": DYNAMIC}),
    ),
    "awq": Form(
        lambda _: awq(32),
        {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"},
    ),
    "gptq": Form(lambda _: gptq(32, symmetric=True), GPTQ),
    "gptq-zero-points": Form(
        lambda _: gptq(32, symmetric=False, v2=True),
        GPTQ | {"sym": False, "checkpoint_format": "gptq_v2"},
    ),
}


def written(name: str, tmp_path: Path, **changes: Any) -> tuple[Path, Path]:
    """A checkpoint in a format, and a plain one with the same values."""
    form = FORMS[name]
    folder = tmp_path / name
    config = form.config | changes
    return folder, quantised(checkpoint(form.of), folder, form.write, config)


def loaded(folder: Path) -> Model:
    config = read_config(folder)
    model = build(config, torch.float32, torch.device("cpu"))
    weights.load(model.plan, checkpoints.read_entries(folder), stored=config.stored)
    return model


@pytest.mark.parametrize("name", FORMS)
def test_a_format_means_its_dequantised_values(name: str, tmp_path: Path) -> None:
    folder, values = written(name, tmp_path)
    models = [loaded(each) for each in (folder, values, checkpoint(FORMS[name].of))]
    ours, theirs, before = ([matrix.plain for matrix in matrices(model)] for model in models)
    assert all(map(torch.equal, ours, theirs))
    # The down projection of the shared expert fits no group of 32.
    assert sum(map(torch.equal, ours, before)) <= len(ours) / 4
    assert answer(folder) == answer(values)


def test_an_older_export_has_a_file_of_its_own(tmp_path: Path) -> None:
    folder, values = written("modelopt", tmp_path)
    raw = json.loads((folder / "config.json").read_text())
    del raw["quantization_config"]
    (folder / "config.json").write_text(json.dumps(raw))
    own = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4"}}
    (folder / "hf_quant_config.json").write_text(json.dumps(own))
    assert answer(folder) == answer(values)
    (folder / "hf_quant_config.json").write_text("[]")
    with pytest.raises(ValueError, match=r"hf_quant_config\.json: .* no JSON object"):
        read_config(folder)


def test_parts_of_a_matrix_in_several_files(tmp_path: Path) -> None:
    folder, values = written("compressed-nvfp4", tmp_path)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    shards = {name: f"{name.endswith('scale')}.safetensors" for name in tensors}
    for shard in set(shards.values()):
        own = {name: tensor for name, tensor in tensors.items() if shards[name] == shard}
        save_file(own, folder / shard)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    file.unlink()
    assert answer(folder) == answer(values)


def test_a_draft_layer_that_stays_plain(tmp_path: Path) -> None:
    plain = with_draft_layer("per_expert", apart=False)
    folder = tmp_path / "drafting"
    values = quantised(plain, folder, lambda _: modelopt_nvfp4, MODELOPT)
    engine = load_engine(folder, max_drafts=2)
    assert engine.max_drafts == 2
    request = Request(PROMPT, 12, GREEDY)
    Driver(engine, num_drafts=lambda: 2).run([request])
    assert request.tokens == answer(values)


def test_workers_with_other_weights_are_different_models(tmp_path: Path) -> None:
    folders = [checkpoint("per_expert"), *(written(name, tmp_path)[0] for name in FORMS)]
    fingerprints = [load_engine(folder).fingerprint for folder in folders]
    assert len(set(fingerprints)) == len(folders)


def test_a_fingerprint_has_the_names_of_packed_weights_and_not_their_formats() -> None:
    stored = Quantization(packed=PackedNames({"a": "nvfp4", "b": "int4"}))
    assert "packed=('a', 'b')" in repr(stored)
    assert [stored.kind(name) for name in "abc"] == ["nvfp4", "int4", "nvfp4"]
