"""Checks whether the Triton kernel set supports a model."""

from collections.abc import Iterator

import torch

from engine.model.config import ModelConfig
from engine.model.layers import Attention, DeltaNet, Dense, LayerSpec, Moe
from engine.model.quantization import BLOCK

MIN_DOT = 16
"""Length of each side of the smallest product on tensor cores."""
LEAST_K = 64
"""The number of columns of a weight is a multiple of this."""
EXPERT_K, EXPERT_ROWS = 256, 128
"""An expert's columns and rows are multiples of these."""
MAX_GROUP = 16
"""The most heads that share a KV head."""
MAX_HEAD_DIM = 256
"""The largest head_dim."""
ALIGNED_DIMS = 8
"""A head_dim is a multiple of this, so that each head begins at a multiple of 16 bytes."""
MAX_TOP_K = 16
"""The most experts of a token."""


def unsupported(config: ModelConfig, dtype: torch.dtype) -> str:
    """Why the set cannot compute this model; "" if it can."""
    problems = [f"dtype {dtype}"] if dtype != torch.bfloat16 else []
    in_fp8 = config.quantization.source != "none"
    problems += _not_multiples({"hidden_size": config.hidden_size}, 512 if in_fp8 else LEAST_K)
    for layer in dict.fromkeys(config.layers):
        problems += _of_layer(layer, config.hidden_size, in_fp8=in_fp8)
    return ", ".join(dict.fromkeys(problems))


def spread_problem(config: ModelConfig) -> str:
    """Why several workers cannot compute a step of this model together (engine/spread); "" if they
    can."""
    if not config.is_hybrid_moe:
        return f"model type {config.model_type}"
    moe, num_layers, problems = config.moe, len(config.layers), list[str]()
    if num_layers % 2:  # flags of an exchange alternate (engine/spread/memory.py)
        problems.append(f"an odd number of layers, {num_layers}")
    if not moe.norm_topk_prob:
        problems.append("norm_topk_prob false")
    if moe.shared_expert_intermediate_size != moe.moe_intermediate_size:
        problems.append("a shared expert of another size than the others")
    return ", ".join([*problems, *_not_powers({"num_experts_per_tok": moe.num_experts_per_tok}, 2)])


def _of_layer(layer: LayerSpec, hidden_size: int, *, in_fp8: bool) -> Iterator[str]:
    if layer.norms_after and isinstance(layer.mlp, Moe):
        yield "norms behind experts"
    if isinstance(layer.mixer, Attention):
        yield from _of_attention(layer.mixer, in_fp8=in_fp8)
    else:
        yield from _of_deltanet(layer.mixer, in_fp8=in_fp8)
    if isinstance(layer.mlp, Moe):
        yield from _of_moe(layer.mlp, hidden_size, in_fp8=in_fp8)
    else:
        yield from _of_dense(layer.mlp, in_fp8=in_fp8)


def _of_attention(attention: Attention, *, in_fp8: bool) -> Iterator[str]:
    head_dim, heads = attention.head_dim, attention.num_attention_heads
    if in_fp8 and head_dim % BLOCK:
        yield f"FP8 blocks of head_dim {head_dim} rows"
    name = "num_attention_heads * head_dim"
    yield from _not_multiples({name: heads * head_dim}, 512 if in_fp8 else LEAST_K)
    group = heads // attention.num_key_value_heads
    if group > MAX_GROUP:
        yield f"num_attention_heads / num_key_value_heads {group} above {MAX_GROUP}"
    yield from _not_multiples({"head_dim": head_dim}, ALIGNED_DIMS)
    if not MIN_DOT <= head_dim <= MAX_HEAD_DIM:
        yield f"head_dim {head_dim} not from {MIN_DOT} to {MAX_HEAD_DIM}"
    yield from _not_multiples({"rotary_dim": attention.rope.rotary_dim}, 2)


def _of_deltanet(deltanet: DeltaNet, *, in_fp8: bool) -> Iterator[str]:
    if in_fp8 and deltanet.interleaved and deltanet.linear_key_head_dim % BLOCK:
        yield f"FP8 blocks of linear_key_head_dim {deltanet.linear_key_head_dim} rows"
    if deltanet.linear_conv_kernel_dim != 4:
        yield f"linear_conv_kernel_dim {deltanet.linear_conv_kernel_dim}"
    if deltanet.linear_key_head_dim != deltanet.linear_value_head_dim:
        yield "linear_key_head_dim and linear_value_head_dim of different sizes"
    sizes = {
        "linear_num_value_heads * linear_value_head_dim": deltanet.value_dim,
        "linear_* channels": deltanet.conv_channels,
    }
    yield from _not_multiples(sizes, 512)
    yield from _not_powers({"linear_key_head_dim": deltanet.linear_key_head_dim}, MIN_DOT)


def _of_moe(moe: Moe, hidden_size: int, *, in_fp8: bool) -> Iterator[str]:
    size, shared = moe.moe_intermediate_size, moe.shared_expert_intermediate_size
    yield from _not_multiples({"moe_intermediate_size": size}, EXPERT_ROWS)
    if shared != size:
        sizes = {"shared_expert_intermediate_size": shared}
        yield from _not_multiples(sizes, 512 if in_fp8 else LEAST_K)
    yield from _not_multiples({"hidden_size": hidden_size}, EXPERT_K)
    if moe.num_experts_per_tok > MAX_TOP_K:
        yield f"num_experts_per_tok {moe.num_experts_per_tok} above {MAX_TOP_K}"


def _of_dense(dense: Dense, *, in_fp8: bool) -> Iterator[str]:
    size = {"intermediate_size": dense.intermediate_size}
    yield from _not_multiples(size, 512 if in_fp8 else LEAST_K)


def _not_multiples(sizes: dict[str, int], of: int) -> Iterator[str]:
    return (f"{name} {size} not a multiple of {of}" for name, size in sizes.items() if size % of)


def _not_powers(sizes: dict[str, int], least: int) -> Iterator[str]:
    return (
        f"{name} {size} not a power of two from {least} on"
        for name, size in sizes.items()
        if size < least or size & (size - 1)
    )
