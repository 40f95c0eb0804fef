"""What is wrong with a model folder is said by name; every storage layout loads the same."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.config import EngineConfig
from engine.errors import CheckpointError
from engine.model.layers import Attention, DeltaNet
from engine.model.registry import read_config
from tests.engine.checkpoints import checkpoint, reference, write_checkpoint
from tests.engine.driver import GREEDY, Driver, Request, load_engine

Tensors = dict[str, torch.Tensor]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(checkpoint("per_expert"), tmp_path / "model"))


def edit(folder: Path, change: Callable[[Tensors], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def configure(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    values = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in values.items() if v is not ...}))


NORM = "model.layers.1.input_layernorm.weight"
EXPERT = "model.layers.2.mlp.experts.3.up_proj.weight"


@pytest.mark.parametrize("name", [NORM, EXPERT])
def test_missing_tensor(folder: Path, name: str) -> None:
    edit(folder, lambda t: t.pop(name))
    with pytest.raises(CheckpointError, match=f"missing tensor {name[6:]}, expected .*shape"):
        load_engine(folder)


def test_unexpected_tensor(folder: Path) -> None:
    edit(folder, lambda t: t.update({"model.layers.0.surprise": torch.ones(1)}))
    with pytest.raises(CheckpointError, match=r"unexpected tensor model\.layers\.0\.surprise"):
        load_engine(folder)


def test_misshaped_tensor(folder: Path) -> None:
    edit(folder, lambda t: t.update({NORM: torch.ones(63)}))
    with pytest.raises(CheckpointError, match=rf"{NORM}.*shape \[63\], expected \[64\]"):
        load_engine(folder)


def test_duplicate_tensor_under_two_prefixes(folder: Path) -> None:
    other = NORM.replace("model.", "model.language_model.", 1)
    edit(folder, lambda t: t.update({other: torch.ones(64)}))
    with pytest.raises(CheckpointError, match=r"duplicate tensor .*layers\.1\.input_layernorm"):
        load_engine(folder)


def test_experts_both_fused_and_split(folder: Path) -> None:
    fused = "model.layers.0.mlp.experts.down_proj"
    edit(folder, lambda t: t.update({fused: torch.ones(8, 64, 32)}))
    with pytest.raises(CheckpointError, match=r"duplicate tensor .*down_proj"):
        load_engine(folder)


def test_unloadable_dtype(folder: Path) -> None:
    edit(folder, lambda t: t.update({NORM: torch.ones(64, dtype=torch.int16)}))
    with pytest.raises(CheckpointError, match=f"{NORM}: dtype I16"):
        load_engine(folder)


def test_truncated_file(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"cannot read .*model\.safetensors"):
        load_engine(folder)


def test_missing_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"missing file .*model\.safetensors"):
        load_engine(folder)


def test_missing_shard(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(checkpoint("sharded"), tmp_path / "model"))
    shard = sorted(folder.glob("model-*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(CheckpointError, match=f"missing file .*{shard.name}"):
        load_engine(folder)


def test_index_that_disagrees_with_its_shards(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(checkpoint("sharded"), tmp_path / "model"))
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"].pop(NORM)
    path.write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=f"unexpected tensor {NORM}"):
        load_engine(folder)
    path.write_text("{}")
    with pytest.raises(CheckpointError, match="no safetensors index"):
        load_engine(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt2"}, r"model_type: .*'gpt2'.*supported: qwen3_5_moe"),
        ({"max_position_embeddings": ...}, "max_position_embeddings: missing"),
        ({"hidden_size": "wide"}, "hidden_size: 'wide' is not a positive integer"),
        ({"rope_parameters": {"rope_type": "yarn"}}, r"rope_parameters.rope_type: 'yarn'"),
        ({"layer_types": ["linear_attention"]}, "layer_types: 1 entries for 4 layers"),
        ({"hidden_act": "gelu"}, "hidden_act: 'gelu'"),
        ({"num_key_value_heads": 3}, "num_attention_heads: 4 is not a multiple"),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok: 9 of 8"),
        ({"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim: 1"),
    ],
)
def test_bad_configs(folder: Path, changes: dict[str, Any], message: str) -> None:
    configure(folder, **changes)
    with pytest.raises(ValueError, match=message):
        read_config(folder)


def test_bad_folders(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"model_dir: .*no such folder"):
        read_config(folder / "absent")
    (folder / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json is not JSON"):
        read_config(folder)
    (folder / "config.json").unlink()
    with pytest.raises(ValueError, match=r"no config\.json"):
        read_config(folder)


def test_config_reads_what_the_files_say(folder: Path) -> None:
    config = read_config(folder)
    assert config.max_position_embeddings == 1024
    configure(folder, layer_types=..., full_attention_interval=2)
    kinds = [type(layer.mixer) for layer in read_config(folder).layers]
    assert kinds == [DeltaNet, Attention] * 2
    multimodal = read_config(checkpoint("multimodal"))
    assert (multimodal.model_type, multimodal.deltanet.linear_num_key_heads) == ("qwen3_5_moe", 1)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("page_size", 48),
        ("num_pages", 0),
        ("num_state_slots", 0),
        ("dtype", "float16"),
        ("device", "tpu"),
        ("load_format", "gguf"),
        ("quantize", "int4"),
        ("num_valid_ids", 0),
        ("num_valid_ids", 264),
    ],
)
def test_bad_engine_settings(setting: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"{setting}: "):
        load_engine(checkpoint("per_expert"), **{setting: value})


@pytest.mark.parametrize("naming", ["fused", "multimodal", "sharded"])
def test_every_storage_layout_is_the_same_model(tmp_path: Path, naming: Any) -> None:
    write_checkpoint(reference("per_expert"), tmp_path, naming)
    requests = [Request((5, 6, 7), 16, GREEDY) for _ in range(2)]
    Driver(load_engine(tmp_path)).run(requests[:1])
    Driver(load_engine(checkpoint("per_expert"))).run(requests[1:])
    assert requests[0].tokens == requests[1].tokens


def test_progress_counts_every_byte(tmp_path: Path) -> None:
    from engine.runner import Engine

    seen: list[tuple[int, int]] = []
    config = EngineConfig(checkpoint("sharded"), num_pages=1, num_state_slots=1)
    Engine.load(
        config,
        lambda n: torch.empty(n, dtype=torch.uint8),
        progress=lambda done, total: seen.append((done, total)),
    )
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1] > 0


def test_fingerprints_tell_fine_tunes_apart(folder: Path) -> None:
    """Norms as they were, every matrix scaled."""
    first = load_engine(folder).fingerprint

    def scale(tensors: Tensors) -> None:
        for tensor in tensors.values():
            if tensor.dim() > 1:
                tensor *= 1.5

    edit(folder, scale)
    assert load_engine(folder).fingerprint != first


def test_fingerprints_tell_models_apart(folder: Path) -> None:
    first = load_engine(folder).fingerprint
    assert first == load_engine(checkpoint("per_expert")).fingerprint
    edit(folder, lambda t: t.update({"model.norm.weight": t["model.norm.weight"] + 1}))
    assert load_engine(folder).fingerprint != first
    assert load_engine(checkpoint("odd")).fingerprint != first


def test_dummy_weights_need_only_the_config(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    requests = [Request((1, 2, 3), 24, GREEDY) for _ in range(3)]
    for seed, request in zip((1, 1, 2), requests, strict=True):
        Driver(load_engine(folder, load_format="dummy", seed=seed)).run([request])
        assert -1 not in request.tokens
    assert requests[0].tokens == requests[1].tokens != requests[2].tokens
