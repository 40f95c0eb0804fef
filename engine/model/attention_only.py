"""Decoders whose layers all attend: Llama, Qwen2, Qwen2-MoE, Qwen3 and Qwen3-MoE."""

from dataclasses import replace
from typing import Any

from engine.model import sparse_layers
from engine.model.config import ModelConfig
from engine.model.fields import Fields
from engine.model.layers import Attention, Dense, LayerSpec, Moe

FULL, SLIDING = "full_attention", "sliding_attention"
MOE = ("qwen2_moe", "qwen3_moe")


def read(text: Fields, outer: dict[str, Any]) -> ModelConfig:
    """Read the configuration; a ValueError names what is missing, wrong or unsupported."""
    family = text.values["model_type"]
    text.must_be("hidden_act", "silu")
    text.must_be("mlp_bias", False)
    heads = text.positive("num_attention_heads")
    head_dim = text.get("head_dim", None)
    head_dim = text.positive("hidden_size") // heads if head_dim is None else head_dim
    bias = family == "llama" and text.flag("attention_bias", False)
    if family != "llama":
        text.must_be("attention_bias", False)
    kv_heads = text.get("num_key_value_heads", None)
    attention = Attention(
        num_attention_heads=heads,
        num_key_value_heads=heads if kv_heads is None else text.positive("num_key_value_heads"),
        head_dim=head_dim,
        rope=text.rope(head_dim, partial_rotary_factor=1.0),
        normed=family.startswith("qwen3"),
        qkv_bias=bias
        or family == "qwen2"
        or (family == "qwen2_moe" and text.flag("qkv_bias", True)),
        o_bias=bias,
    )
    mixers = [replace(attention, window=window) for window in _windows(text, family)]
    layers = tuple(LayerSpec(*each) for each in zip(mixers, _mlps(text, family), strict=True))
    return ModelConfig.of(text, outer, layers)


def _windows(text: Fields, family: str) -> list[int | None]:
    """The window of each layer; None: it attends to all tokens."""
    num_layers = text.positive("num_hidden_layers")
    if family == "llama" or not text.flag("use_sliding_window", False):
        text.layer_types(FULL)
        return [None] * num_layers
    window = text.positive("sliding_window")
    if family == "qwen3_moe":
        return [window] * num_layers
    kinds = text.layer_types(FULL, SLIDING)
    if kinds is None:
        most = text.count("max_window_layers", 28)
        slides = [
            i % 2 == 0 and i < most if family == "qwen2_moe" else i >= most
            for i in range(num_layers)
        ]
    else:
        slides = [kind == SLIDING for kind in kinds]
    return [window if each else None for each in slides]


def _mlps(text: Fields, family: str) -> list[Dense | Moe]:
    """The MLP of each layer."""
    if family in MOE:
        return sparse_layers.mlps(text, shared=family == "qwen2_moe", renormalised=False)
    return [Dense(text.positive("intermediate_size"))] * text.positive("num_hidden_layers")
