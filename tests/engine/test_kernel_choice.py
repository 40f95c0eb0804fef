"""Models that the Triton kernels do not do are named before any kernel is compiled."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from engine.kernels.triton_support import spread_problem, unsupported
from engine.model.config import ModelConfig
from engine.model.layers import Attention, DeltaNet, Dense, LayerSpec, Moe, Rope
from engine.model.registry import read_config
from tests.engine.compiled_kernels import FULL_SIZE

CONFIG = read_config(FULL_SIZE.parent)
RELEASED = (
    (4096, 32, 8, 128, Dense(14336)),
    (3584, 28, 4, 128, Dense(18944)),
    (896, 14, 2, 64, Dense(4864)),
    (1024, 16, 8, 128, Dense(3072)),
    (2048, 32, 4, 128, Moe(128, 8, 768)),
    (2048, 16, 16, 128, Moe(60, 4, 1408, 5632, norm_topk_prob=False)),
    (2048, 16, 2, 256, Moe(512, 10, 512, 512)),
    (1152, 4, 1, 256, Dense(6912)),
    (3840, 16, 8, 256, Dense(15360)),
    (640, 4, 1, 256, Dense(2048)),
    (5376, 32, 16, 128, Dense(21504)),
    (2048, 32, 8, 64, Dense(8192)),
    (16384, 128, 8, 128, Dense(53248)),
    (5120, 64, 8, 128, Dense(25600)),
    (4096, 64, 4, 128, Moe(128, 8, 1536)),
    (3584, 28, 4, 128, Moe(64, 8, 2560, 20480, norm_topk_prob=False)),
    (3072, 32, 2, 256, Moe(256, 8, 1024, 1024)),
    (4096, 32, 2, 256, Moe(512, 10, 1024, 1024)),
)
"""Layers of attention of models that docs/models.md names: hidden size, heads, KV heads, head_dim
and MLP."""


def changed(**changes: Any) -> ModelConfig:
    """The full-size model with other dimensions, in every layer that has them."""

    def part(of: Any) -> Any:
        own = {name: value for name, value in changes.items() if hasattr(of, name)}
        if "rotary_dim" in changes and hasattr(of, "rope"):
            own["rope"] = replace(of.rope, rotary_dim=changes["rotary_dim"])
        return replace(of, **own)

    layers = tuple(LayerSpec(part(layer.mixer), part(layer.mlp)) for layer in CONFIG.layers)
    return replace(CONFIG, layers=layers)


def test_the_full_size_model_is_supported() -> None:
    assert unsupported(CONFIG, torch.bfloat16) == ""


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"num_experts_per_tok": 17}, "num_experts_per_tok 17 "),
        ({"head_dim": 320}, "head_dim 320 not from 16 to 256"),
        ({"head_dim": 100}, "head_dim 100 not a multiple of 8"),
        ({"head_dim": 8, "num_attention_heads": 64}, "head_dim 8 "),
        ({"rotary_dim": 63}, "rotary_dim 63 "),
        ({"linear_value_head_dim": 256}, "linear_value_head_dim of different"),
        ({"linear_key_head_dim": 96, "linear_value_head_dim": 96}, "linear_key_head_dim 96 "),
        ({"linear_num_key_heads": 1, "linear_num_value_heads": 1}, "channels 384 "),
        ({"num_attention_heads": 34}, "num_key_value_heads 17 "),
        ({"moe_intermediate_size": 320}, "moe_intermediate_size 320 "),
    ],
)
def test_what_is_not_is_named(changes: dict[str, int], named: str) -> None:
    assert named in unsupported(changed(**changes), torch.bfloat16)


@pytest.mark.parametrize("head_dim", [64, 80, 96, 120, 128, 192, 256])
@pytest.mark.parametrize("group", range(1, 17))
def test_sizes_of_heads_and_groups(head_dim: int, group: int) -> None:
    attention = Attention(8 * group, 8, head_dim, Rope(1e4, head_dim))
    config = replace(CONFIG, layers=(LayerSpec(attention, Dense(320)),))
    assert unsupported(config, torch.bfloat16) == ""


def test_the_full_size_model_takes_spread_steps() -> None:
    assert spread_problem(CONFIG) == spread_problem(CONFIG.rounded().packing()) == ""


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (changed(num_experts_per_tok=10), "num_experts_per_tok 10 "),
        (changed(num_experts_per_tok=1), "num_experts_per_tok 1 "),
        (changed(norm_topk_prob=False), "norm_topk_prob false"),
        (changed(shared_expert_intermediate_size=0), "shared expert of another size"),
        (replace(CONFIG, layers=CONFIG.layers[:5]), "an odd number of layers, 5"),
        (replace(CONFIG, layers=(LayerSpec(CONFIG.attention, Dense(64)),)), "model type qwen3_5"),
    ],
)
def test_what_prevents_spread_steps_is_named(config: ModelConfig, named: str) -> None:
    assert named in spread_problem(config)


def test_parts_of_other_models() -> None:
    def with_all(mixer: Attention | DeltaNet, mlp: Dense | Moe, **of: Any) -> str:
        layers = (LayerSpec(mixer, mlp, **of),)
        attention = LayerSpec(CONFIG.attention, mlp, **of)
        return unsupported(replace(CONFIG, layers=(*layers, attention)), torch.bfloat16)

    attention, moe = CONFIG.attention, CONFIG.moe
    assert with_all(CONFIG.deltanet, Dense(17408)) == ""
    assert with_all(replace(CONFIG.deltanet, linear_num_value_heads=48), Dense(17408)) == ""
    assert with_all(attention, replace(moe, shared_expert_intermediate_size=0)) == ""
    assert with_all(CONFIG.deltanet, Dense(17400)) == "intermediate_size 17400 not a multiple of 64"
    assert with_all(replace(attention, window=9), Dense(64), norms_after=True) == ""
    assert with_all(attention, moe, norms_after=True) == "norms behind experts"
    assert with_all(attention, replace(moe, shared_expert_intermediate_size=5632)) == ""


def test_fp8_needs_heads_of_whole_blocks() -> None:
    small = {"linear_key_head_dim": 64, "linear_value_head_dim": 64}
    for changes in ({"head_dim": 64}, small | {"interleaved": True}):
        config = changed(**changes)
        assert unsupported(config, torch.bfloat16) == ""
        assert "head_dim 64 rows" in unsupported(config.quantised(), torch.bfloat16)
    assert unsupported(changed(**small).quantised(), torch.bfloat16) == ""


def test_sizes_of_released_models() -> None:
    """Llama-3-8B, Qwen2.5-7B and 0.5B, Qwen3-0.6B and 30B-A3B, Qwen1.5-MoE-A2.7B, Qwen3-Next, Gemma
    3 1B and 12B, by their heads and MLPs."""
    for hidden, heads, kv_heads, head_dim, mlp in RELEASED:
        attention = Attention(heads, kv_heads, head_dim, Rope(1e4, head_dim))
        config = replace(CONFIG, hidden_size=hidden, layers=(LayerSpec(attention, mlp),))
        assert unsupported(config, torch.bfloat16) == ""
