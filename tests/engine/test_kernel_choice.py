"""Models that the Triton kernels do not do are named before any kernel is compiled."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from engine.kernels.triton_support import unsupported
from engine.model.config import ModelConfig
from engine.model.layers import Dense, LayerSpec
from engine.model.registry import read_config
from tests.engine.compiled_kernels import FULL_SIZE

CONFIG = read_config(FULL_SIZE.parent)


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
        ({"num_experts_per_tok": 6}, "num_experts_per_tok 6 "),
        ({"head_dim": 192}, "head_dim 192 "),
        ({"head_dim": 8, "num_attention_heads": 64}, "head_dim 8 "),
        ({"rotary_dim": 96}, "rotary_dim 96 "),
        ({"linear_value_head_dim": 256}, "linear_value_head_dim of different"),
        ({"linear_key_head_dim": 96, "linear_value_head_dim": 96}, "linear_key_head_dim 96 "),
        ({"linear_num_key_heads": 1, "linear_num_value_heads": 1}, "channels 384 "),
        ({"linear_num_value_heads": 48}, "linear_num_value_heads 48 "),
        ({"num_attention_heads": 6}, "num_key_value_heads 3 "),
    ],
)
def test_what_is_not_is_named(changes: dict[str, int], named: str) -> None:
    assert named in unsupported(changed(**changes), torch.bfloat16)


def test_a_model_of_another_kind_is_named() -> None:
    layers = tuple(LayerSpec(layer.mixer, Dense(512)) for layer in CONFIG.layers)
    dense = replace(CONFIG, model_type="qwen3_5", layers=layers)
    assert unsupported(dense, torch.bfloat16).startswith("model_type qwen3_5, ")
