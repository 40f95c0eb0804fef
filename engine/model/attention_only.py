"""Decoders whose layers all attend: Llama, Qwen2, Qwen2-MoE, Qwen3 and Qwen3-MoE."""

from typing import Any

from engine.model import sparse_layers
from engine.model.config import ModelConfig
from engine.model.fields import Fields
from engine.model.layers import Attention, Dense, LayerSpec, Moe

MOE = ("qwen2_moe", "qwen3_moe")


def read(text: Fields, outer: dict[str, Any]) -> ModelConfig:
    """Read the configuration; a ValueError names what is missing, wrong or unsupported."""
    family = text.values["model_type"]
    text.must_be("hidden_act", "silu")
    text.must_be("mlp_bias", False)
    text.must_be("use_sliding_window", False)
    text.layer_types("full_attention")
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
    return ModelConfig.of(
        text, outer, tuple(LayerSpec(attention, mlp) for mlp in _mlps(text, family))
    )


def _mlps(text: Fields, family: str) -> list[Dense | Moe]:
    """The MLP of each layer."""
    if family in MOE:
        return sparse_layers.mlps(text, shared=family == "qwen2_moe", renormalised=False)
    return [Dense(text.positive("intermediate_size"))] * text.positive("num_hidden_layers")
