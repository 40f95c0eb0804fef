"""FP8 checkpoints of the official layout, and the same made at load."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from engine.errors import CheckpointError
from engine.loading import checkpoint as checkpoints
from engine.loading import weights
from engine.loading.plan import FLOATS
from engine.model.matrix import Matrix, quantise
from engine.model.model import Model
from engine.model.quantization import Quantization
from engine.model.registry import build, read_config
from tests.engine.checkpoints import SHAPES, checkpoint, convert_to_fp8, reference, write_checkpoint
from tests.engine.driver import GREEDY, Driver, Request, load_engine
from tests.engine.families import SHAPES as FAMILY_SHAPES
from tests.engine.families import family_checkpoint

# Heads and experts of sizes that blocks of 128 rows straddle, columns that fill no block.
NAMES = ("per_expert", "fused", "multimodal", "odd", "qwen3_next", "qwen3_next-odd")
PROMPT = tuple(range(5, 70))


def answer(folder: Path, **settings: Any) -> list[int]:
    request = Request(PROMPT, 12, GREEDY)
    Driver(load_engine(folder, **settings)).run([request])
    return request.tokens


def plain_checkpoint(name: str) -> Path:
    return family_checkpoint(name) if name in FAMILY_SHAPES else checkpoint(name)


def fp8_copy(name: str, tmp_path: Path, **settings: Any) -> tuple[Path, dict[str, torch.Tensor]]:
    folder = Path(shutil.copytree(plain_checkpoint(name), tmp_path / "fp8"))
    return folder, convert_to_fp8(folder, **settings)


def matrices(model: Model) -> list[Matrix]:
    found = []
    for layer in model.weights.layers:
        for part in (layer.mixer, layer.mlp):
            found += [value for value in vars(part).values() if isinstance(value, Matrix)]
    return found


@pytest.mark.parametrize("name", NAMES)
def test_the_official_layout_means_its_dequantised_values(name: str, tmp_path: Path) -> None:
    folder, meant = fp8_copy(name, tmp_path)
    model = build(read_config(folder), torch.float32, torch.device("cpu"))
    weights.load(model.plan, checkpoints.read_entries(folder))
    plain_folder = Path(shutil.copytree(plain_checkpoint(name), tmp_path / "plain"))
    save_file(meant, plain_folder / "model.safetensors")
    plain = build(read_config(plain_folder), torch.float32, torch.device("cpu"))
    weights.load(plain.plan, checkpoints.read_entries(plain_folder))
    for ours, theirs in zip(matrices(model), matrices(plain), strict=True):
        assert ours.num_fp8 > 0
        assert theirs.num_fp8 == 0
        assert torch.equal(ours.dequantised(), theirs.plain)
    assert model.num_bytes < plain.num_bytes
    assert answer(folder) == answer(plain_folder)


def test_serving_an_fp8_checkpoint_in_bfloat16(tmp_path: Path) -> None:
    folder, _ = fp8_copy("per_expert", tmp_path)
    assert -1 not in answer(folder, dtype="bfloat16")


def test_conversion_by_an_independent_formula() -> None:
    rows = torch.randn(300, 200) * torch.logspace(-3, 3, 300)[:, None]
    rows[256:, 128:] = 0.0
    values, scales = quantise(rows)
    assert scales.shape == (3, 2)
    for i in range(3):
        for j in range(2):
            block = rows[128 * i : 128 * i + 128, 128 * j : 128 * j + 128]
            own = values[128 * i : 128 * i + 128, 128 * j : 128 * j + 128].float()
            largest = max(abs(float(block.max())), abs(float(block.min())))
            if largest == 0.0:
                assert own.eq(0).all()
                continue
            assert float(scales[i, j]) == pytest.approx(largest / 448, rel=1e-6)
            assert float(own.abs().max()) == 448.0
            # Half of the last of three bits, or of the smallest number.
            error = (own * scales[i, j] - block).abs()
            assert (error <= block.abs() / 16 + scales[i, j] * 2**-10).all()


@pytest.mark.parametrize("name", NAMES)
def test_quantised_at_load_is_the_official_conversion_but_for_rounded_scales(
    name: str, tmp_path: Path
) -> None:
    folder, _ = fp8_copy(name, tmp_path)
    stored = build(read_config(folder), torch.float32, torch.device("cpu"))
    weights.load(stored.plan, checkpoints.read_entries(folder))
    config = read_config(plain_checkpoint(name)).quantised()
    made = build(config, torch.float32, torch.device("cpu"))
    weights.load(made.plan, checkpoints.read_entries(plain_checkpoint(name)))
    assert made.num_bytes == stored.num_bytes
    for ours, theirs in zip(matrices(made), matrices(stored), strict=True):
        assert (ours.num_fp8, ours.group) == (theirs.num_fp8, theirs.group)
        torch.testing.assert_close(ours.scales, theirs.scales, rtol=2**-8, atol=0)
        assert torch.equal(ours.plain, theirs.plain)
        same = (ours.fp8.float() == theirs.fp8.float()).float().mean()
        assert same > 0.85, "a scale rounded to bfloat16 moves few values to a neighbour"


def test_experts_fused_and_apart_are_converted_alike(tmp_path: Path) -> None:
    """Gate and up of 32 rows each share a block where they are stored as one tensor."""
    write_checkpoint(reference("per_expert"), tmp_path, "fused")
    models = []
    for folder in (tmp_path, checkpoint("per_expert")):
        config = read_config(folder).quantised()
        models.append(build(config, torch.float32, torch.device("cpu")))
        weights.load(models[-1].plan, checkpoints.read_entries(folder))
    for fused, apart in zip(*map(matrices, models), strict=True):
        difference = (fused.dequantised() - apart.dequantised()).norm()
        assert difference < 0.05 * apart.dequantised().norm()


def test_a_large_tensor_is_converted_expert_by_expert(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.loading.fp8_places.QUANTISED_AT_ONCE", 1)
    config = read_config(checkpoint("fused")).quantised()
    models = [build(config, torch.float32, torch.device("cpu")) for _ in range(2)]
    for model in models:
        weights.load(model.plan, checkpoints.read_entries(checkpoint("fused")))
        monkeypatch.undo()
    for ours, theirs in zip(*map(matrices, models), strict=True):
        assert torch.equal(ours.dequantised(), theirs.dequantised())


@pytest.mark.parametrize("at_once", [1, 1 << 26])
@pytest.mark.parametrize("official", [False, True])
def test_lm_head_is_converted_on_request(
    official: bool, at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.loading.fp8_places.QUANTISED_AT_ONCE", at_once)
    folder = fp8_copy("per_expert", tmp_path)[0] if official else checkpoint("per_expert")
    stored = load_file(folder / "model.safetensors")["lm_head.weight"]
    config = read_config(folder).quantised(lm_head=True)
    model = build(config, torch.float32, torch.device("cpu"))
    weights.load(model.plan, checkpoints.read_entries(folder))
    head, num_ids = model.weights.lm_head, config.vocab_size
    assert head.num_fp8 == head.shape[0] == -(-num_ids // 128) * 128 > num_ids
    assert head.group == 128
    values, scales = quantise(stored)
    assert torch.equal(head.scales, scales)
    assert torch.equal(head.fp8[:num_ids].float(), values.float())
    assert head.fp8[num_ids:].float().eq(0).all()
    part = head.part(128, 128)
    assert torch.equal(part.dequantised(), head.dequantised()[128:256])


@pytest.mark.parametrize("official", [False, True])
def test_logits_are_those_of_the_dequantised_lm_head(official: bool, tmp_path: Path) -> None:
    folder = fp8_copy("per_expert", tmp_path)[0] if official else checkpoint("per_expert")
    engine = load_engine(folder, quantize="fp8-lm-head")
    hidden = torch.randn(3, engine.model_config.hidden_size)
    num_ids = engine.model_config.vocab_size - 5
    meant = F.linear(hidden, engine._model.weights.lm_head.dequantised()[:num_ids])
    logits = engine._model.logits(hidden, num_ids, engine._kernels)
    torch.testing.assert_close(logits, meant)
    out = torch.empty(3, num_ids)
    engine._model.logits(hidden, num_ids, engine._kernels, out)
    assert torch.equal(out, logits)
    dummy = answer(folder, load_format="dummy", quantize="fp8-lm-head")
    assert -1 not in dummy


def test_a_tied_lm_head_is_refused() -> None:
    name = next(n for n in SHAPES if read_config(checkpoint(n)).tie_word_embeddings)
    with pytest.raises(ValueError, match=r"quantize: fp8-lm-head: .* its embedding"):
        load_engine(checkpoint(name), quantize="fp8-lm-head")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"quant_method": "gguf"}, "quantization_config.quant_method: 'gguf' .*only 'fp8'"),
        ({"fmt": "e5m2"}, "quantization_config.fmt: 'e5m2'"),
        ({"weight_block_size": [64, 64]}, r"weight_block_size: \[64, 64\] .*only \[128, 128\]"),
        ({"weight_block_size": None}, "quantization_config.weight_block_size: None"),
        ({"activation_scheme": "static"}, "quantization_config.activation_scheme: 'static'"),
        ({"modules_to_not_convert": "lm_head"}, "modules_to_not_convert: 'lm_head' .*no list"),
    ],
)
def test_other_schemes_are_refused_by_name(
    settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder, _ = fp8_copy("per_expert", tmp_path, **settings)
    with pytest.raises(ValueError, match=message):
        load_engine(folder)


@pytest.mark.parametrize(
    ("kept", "message"),
    [
        (["in_proj_qkv", "in_proj_a", "in_proj_b", "mlp.gate", "shared_expert_gate"],
         r"in_proj_z.weight is converted and layers\.0\.linear_attn\.in_proj_qkv.weight is not"),
        (["gate_proj", "in_proj_a", "in_proj_b", "mlp.gate", "shared_expert_gate"],
         "quantization_config: layers.0.mlp.*converted"),
        ([], r"layers\.0\.linear_attn\.in_proj_[ab].weight.*: dtype .*expected F8_E4M3"),
        (["model.layers.2.mlp.experts", "in_proj_a", "in_proj_b", "mlp.gate",
          "shared_expert_gate"], r"layers\.2\.mlp\.experts.*: dtype F8_E4M3, .*expected F32"),
    ],
)  # fmt: skip
def test_a_checkpoint_that_is_not_what_its_config_says(
    kept: list[str], message: str, tmp_path: Path
) -> None:
    folder, _ = fp8_copy("per_expert", tmp_path, modules_to_not_convert=kept)
    with pytest.raises(ValueError, match=message):
        load_engine(folder)


def test_a_missing_or_misshaped_scale_is_named(tmp_path: Path) -> None:
    folder, _ = fp8_copy("per_expert", tmp_path)
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.0.linear_attn.out_proj.weight_scale_inv"
    for changed, message in (
        (torch.ones(3, 3), r"shape \[3, 3\], expected \[1, 1\]"),
        (None, "missing tensor layers.0.linear_attn.out_proj.weight_scale_inv"),
    ):
        other = {key: value for key, value in tensors.items() if key != name}
        save_file(
            other | ({} if changed is None else {name: changed}), folder / "model.safetensors"
        )
        with pytest.raises(CheckpointError, match=message):
            load_engine(folder)


def test_names_of_modules_are_taken_as_in_transformers() -> None:
    kept = ("model.layers.1.mlp", "lm_head", "mlp.gate", "model.language_model.layers.2", r"x\..*a")
    quantization = Quantization("checkpoint", kept)
    converted = ("layers.1.mlp2", "layers.11.mlp", "layers.0.mlp.gate_proj", "layers.21.mlp.up")
    assert all(quantization.converts(f"{name}.weight") for name in converted)
    for name in ("layers.1.mlp.up", "lm_head", "layers.0.mlp.gate", "layers.2.self_attn.q", "x.ya"):
        assert not quantization.converts(f"{name}.weight"), name
    assert not Quantization().converts("layers.0.mlp.up.weight")


def test_dummy_weights_in_fp8_need_only_the_config(tmp_path: Path) -> None:
    folder, _ = fp8_copy("per_expert", tmp_path)
    (folder / "model.safetensors").unlink()
    stored = answer(folder, load_format="dummy", seed=1)
    assert -1 not in stored
    assert stored == answer(folder, load_format="dummy", seed=1, quantize="fp8")
    made = load_engine(checkpoint("per_expert"), load_format="dummy", quantize="fp8")
    assert all(matrix.num_fp8 for matrix in matrices(made._model))


def test_workers_in_fp8_and_in_bf16_are_different_models(tmp_path: Path) -> None:
    """A handoff between them is refused: the fingerprint is what two workers must share."""
    folder, _ = fp8_copy("per_expert", tmp_path)
    plain = load_engine(checkpoint("per_expert"))
    made = load_engine(checkpoint("per_expert"), quantize="fp8")
    stored = load_engine(folder)
    assert len({engine.fingerprint for engine in (plain, made, stored)}) == 3
    assert made.layout == stored.layout == plain.layout, "the cache stays as it is"
    again = load_engine(folder, quantize="fp8")
    assert again.fingerprint == stored.fingerprint
    with_head = [
        load_engine(each, quantize="fp8-lm-head").fingerprint
        for each in (folder, checkpoint("per_expert"))
    ]
    assert not {*with_head} & {plain.fingerprint, made.fingerprint, stored.fingerprint}
    drawn = [
        load_engine(checkpoint("per_expert"), load_format="dummy", quantize=quantize).fingerprint
        for quantize in ("none", "fp8")
    ]
    assert drawn[0] != drawn[1]


def test_every_shape_can_be_quantised_at_load() -> None:
    for name in SHAPES:
        config = read_config(checkpoint(name)).quantised()
        model = build(config, torch.bfloat16, torch.device("meta"))
        assert all(target.stored == FLOATS for target in model.plan.targets.values())
        assert (
            model.num_bytes
            < build(
                replace(config, quantization=Quantization()), torch.bfloat16, torch.device("meta")
            ).num_bytes
        )


def test_the_full_size_model_in_fp8_takes_half_the_bytes() -> None:
    folder = Path(__file__).parents[3] / "bench/models/qwen3.5-35b-a3b"
    config = read_config(folder).without_drafts()
    sizes = [
        build(each, torch.bfloat16, torch.device("meta")).num_bytes / 2**30
        for each in (config, config.quantised())
    ]
    assert sizes == pytest.approx([64.6, 33.3], abs=0.5)
    assert json.loads((folder / "config.json").read_text()).get("quantization_config") is None
