"""Qwen3.5 and Qwen3.6, text only: Gated DeltaNet with gated attention in every few layers, and
experts (``qwen3_5_moe``) or a dense MLP (``qwen3_5``)."""

from typing import Any

from engine.model.config import ModelConfig
from engine.model.fields import Fields
from engine.model.layers import Attention, DeltaNet, Dense, LayerSpec, Moe

LINEAR, FULL = "linear_attention", "full_attention"


def read(text: Fields, outer: dict[str, Any]) -> ModelConfig:
    """Read the configuration; a ValueError names what is missing, wrong or unsupported."""
    text.must_be("hidden_act", "silu")
    text.must_be("attention_bias", False)
    text.must_be("attn_output_gate", True)
    text.must_be("mtp_use_dedicated_embeddings", False)
    full, linear = attention(text), deltanet(text)
    mlp = _moe(text) if "moe" in outer["model_type"] else Dense(text.positive("intermediate_size"))
    return ModelConfig.of(
        text,
        outer,
        tuple(LayerSpec(linear if kind == LINEAR else full, mlp) for kind in kinds(text)),
        plus_one_norms=True,
        num_mtp_layers=min(1, text.count("mtp_num_hidden_layers")),
    )


def attention(text: Fields, **defaults: float) -> Attention:
    """The gated attention; ``defaults`` of fields of the rotary positions."""
    head_dim = text.positive("head_dim")
    return Attention(
        num_attention_heads=text.positive("num_attention_heads"),
        num_key_value_heads=text.positive("num_key_value_heads"),
        head_dim=head_dim,
        rope=text.rope(head_dim, **defaults),
        gated=True,
    )


def deltanet(text: Fields, *, interleaved: bool = False) -> DeltaNet:
    """The Gated DeltaNet, its projections stored ``interleaved`` or not."""
    return DeltaNet(
        linear_conv_kernel_dim=text.positive("linear_conv_kernel_dim"),
        linear_num_key_heads=text.positive("linear_num_key_heads"),
        linear_num_value_heads=text.positive("linear_num_value_heads"),
        linear_key_head_dim=text.positive("linear_key_head_dim"),
        linear_value_head_dim=text.positive("linear_value_head_dim"),
        interleaved=interleaved,
    )


def _moe(text: Fields) -> Moe:
    text.must_be("norm_topk_prob", True)
    return Moe(
        num_experts=text.positive("num_experts"),
        num_experts_per_tok=text.positive("num_experts_per_tok"),
        moe_intermediate_size=text.positive("moe_intermediate_size"),
        shared_expert_intermediate_size=text.positive("shared_expert_intermediate_size"),
    )


def kinds(text: Fields) -> tuple[str, ...]:
    """The mixer of each layer, ``LINEAR`` or ``FULL``."""
    listed = text.layer_types(LINEAR, FULL)
    if listed is None:
        every = text.positive("full_attention_interval")
        numbers = range(1, text.positive("num_hidden_layers") + 1)
        listed = tuple(LINEAR if number % every else FULL for number in numbers)
    if FULL not in listed:
        raise ValueError(f"layer_types: {len(listed)} layers, none of them {FULL}")
    return listed
