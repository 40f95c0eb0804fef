"""Qwen3-Next: Qwen3.5's layers with other fields, and DeltaNet's projections interleaved."""

from typing import Any

from engine.model import qwen35, sparse_layers
from engine.model.config import ModelConfig
from engine.model.fields import Fields
from engine.model.layers import LayerSpec


def read(text: Fields, outer: dict[str, Any]) -> ModelConfig:
    """Read the configuration; a ValueError names what is missing, wrong or unsupported. A draft
    layer is not read."""
    text.must_be("hidden_act", "silu")
    text.must_be("attention_bias", False)
    attention = qwen35.attention(text, partial_rotary_factor=0.25)
    deltanet = qwen35.deltanet(text, interleaved=True)
    mlps = sparse_layers.mlps(text, shared=True, renormalised=True)
    return ModelConfig.of(
        text,
        outer,
        tuple(
            LayerSpec(deltanet if kind == qwen35.LINEAR else attention, mlp)
            for kind, mlp in zip(qwen35.kinds(text), mlps, strict=True)
        ),
        plus_one_norms=True,
    )
