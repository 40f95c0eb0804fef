"""Gemma 3, text only: norms before and after attention and MLP, most layers within a window."""

from typing import Any

from engine.model.config import ModelConfig
from engine.model.fields import Fields
from engine.model.layers import Attention, Dense, LayerSpec, Rope

SLIDING, FULL = "sliding_attention", "full_attention"
DEFAULTS: dict[str, Any] = {
    "vocab_size": 262_208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-6,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
}
"""What released checkpoints leave out of ``config.json``, as transformers' Gemma3TextConfig."""
THETAS = {SLIDING: ("rope_local_base_freq", 10_000.0), FULL: ("rope_theta", 1_000_000.0)}
"""The field of each kind's base in older checkpoints, and its default."""


def read(text: Fields, outer: dict[str, Any]) -> ModelConfig:
    """Read the configuration; a ValueError names what is missing, wrong or unsupported."""
    given = {name: value for name, value in text.values.items() if value is not None}
    text = Fields({**DEFAULTS, **given}, text.folder)
    text.must_be("hidden_activation", "gelu_pytorch_tanh")
    text.must_be("use_bidirectional_attention", False)
    text.must_be("attn_logit_softcapping", None)
    text.must_be("final_logit_softcapping", None)
    mlp = Dense(text.positive("intermediate_size"), "gelu_tanh")
    return ModelConfig.of(
        text,
        outer,
        tuple(LayerSpec(_attention(text, kind), mlp, norms_after=True) for kind in _kinds(text)),
        plus_one_norms=True,
        embedding_scale=text.positive("hidden_size") ** 0.5,
    )


def _kinds(text: Fields) -> tuple[str, ...]:
    """The attention of each layer."""
    listed = text.layer_types(SLIDING, FULL)
    if listed is None:
        every = text.positive("sliding_window_pattern", 6)
        numbers = range(1, text.positive("num_hidden_layers") + 1)
        listed = tuple(SLIDING if number % every else FULL for number in numbers)
    return listed


def _attention(text: Fields, kind: str) -> Attention:
    head_dim, bias = text.positive("head_dim"), text.flag("attention_bias", False)
    return Attention(
        num_attention_heads=text.positive("num_attention_heads"),
        num_key_value_heads=text.positive("num_key_value_heads"),
        head_dim=head_dim,
        rope=_rope(text, kind, head_dim),
        qkv_bias=bias,
        o_bias=bias,
        window=text.positive("sliding_window") if kind == SLIDING else None,
        scale=text.number("query_pre_attn_scalar") ** -0.5,
    )


def _rope(text: Fields, kind: str, head_dim: int) -> Rope:
    """The rotary positions of a kind of layer; only those of full attention may be scaled."""
    name, default = THETAS[kind]
    values: dict[str, Any] = {"rope_theta": text.get(name, default)}
    if text.get("rope_parameters", None) is not None:
        values = {"rope_parameters": text.mapping("rope_parameters").get(kind)}
    elif kind == FULL:
        values["rope_scaling"] = text.get("rope_scaling", None)
    return Fields(values, text.folder).rope(head_dim, rope_theta=default, partial_rotary_factor=1.0)
