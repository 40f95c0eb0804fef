"""Checks whether the Triton kernel set supports a model."""

import torch

from engine.model.config import ModelConfig
from engine.model.quantization import BLOCK

MIN_DOT = 16
"""Length of each side of the smallest product on tensor cores."""


def unsupported(config: ModelConfig, dtype: torch.dtype) -> str:
    """Why the set cannot compute this model; "" if it can."""
    if not config.is_hybrid_moe:
        return f"model_type {config.model_type}, which is not DeltaNet and attention with experts"
    deltanet, attention, moe = config.deltanet, config.attention, config.moe
    problems = []
    if dtype != torch.bfloat16:
        problems.append(f"dtype {dtype}")
    if deltanet.linear_conv_kernel_dim != 4:
        problems.append(f"linear_conv_kernel_dim {deltanet.linear_conv_kernel_dim}")
    if moe.moe_intermediate_size != moe.shared_expert_intermediate_size:
        problems.append("experts and shared expert of different sizes")
    if deltanet.linear_key_head_dim != deltanet.linear_value_head_dim:
        problems.append("linear_key_head_dim and linear_value_head_dim of different sizes")
    value_heads = deltanet.linear_num_value_heads
    if value_heads % 32 and 32 % value_heads:
        problems.append(f"linear_num_value_heads {value_heads} neither a part of 32 nor a multiple")
    sizes = {
        "hidden_size": config.hidden_size,
        "moe_intermediate_size": moe.moe_intermediate_size,
        "num_attention_heads * head_dim": attention.num_attention_heads * attention.head_dim,
        "linear_num_value_heads * linear_value_head_dim": deltanet.value_dim,
        "linear_* channels": deltanet.conv_channels,
    }
    if config.quantization.source != "none" and attention.head_dim % BLOCK:
        problems.append(f"FP8 blocks of head_dim {attention.head_dim} rows")
    problems += [
        f"{name} {size} not a multiple of 512" for name, size in sizes.items() if size % 512
    ]
    powers = {
        "num_experts_per_tok": (moe.num_experts_per_tok, 1),
        "num_attention_heads / num_key_value_heads": (
            attention.num_attention_heads // attention.num_key_value_heads,
            1,
        ),
        "head_dim": (attention.head_dim, MIN_DOT),
        "rotary_dim": (attention.rope.rotary_dim, 2),
        "linear_key_head_dim": (deltanet.linear_key_head_dim, MIN_DOT),
    }
    problems += [
        f"{name} {size} not a power of two from {least} on"
        for name, (size, least) in powers.items()
        if size < least or size & (size - 1)
    ]
    return ", ".join(problems)
