"""Small random checkpoints of every model family, three shapes each, and their references."""

import json
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from tests.engine.checkpoints import BASE, _draft_layer, _scale

ATTENTION: dict[str, Any] = {
    "vocab_size": 263, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "max_position_embeddings": 1024, "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "attn_implementation": "eager", "eos_token_id": 260,
}  # fmt: skip
ODD: dict[str, Any] = {"num_attention_heads": 5, "num_key_value_heads": 1, "head_dim": 24}
FIVE: dict[str, Any] = {
    "hidden_size": 60, "num_attention_heads": 5, "num_key_value_heads": 1, "head_dim": 12
}  # fmt: skip
TIED: dict[str, Any] = {
    "num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 8, "tie_word_embeddings": True,
    "hidden_size": 24,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
}  # fmt: skip
MOE: dict[str, Any] = {
    "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 40, "norm_topk_prob": True
}  # fmt: skip
SHARED: dict[str, Any] = MOE | {"shared_expert_intermediate_size": 44, "norm_topk_prob": False}
WINDOW: dict[str, Any] = {"use_sliding_window": True, "sliding_window": 21, "max_window_layers": 1}
GEMMA: dict[str, Any] = ATTENTION | {
    "sliding_window": 21, "query_pre_attn_scalar": 24, "num_hidden_layers": 4,
    "tie_word_embeddings": True,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        "full_attention": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 8.0},
    },
}  # fmt: skip
HYBRID = BASE | {"intermediate_size": 96}

SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_5": ("qwen3_5_text", HYBRID),
    "qwen3_5-odd": (
        "qwen3_5_text",
        HYBRID | ODD | {"linear_num_key_heads": 1, "linear_num_value_heads": 3},
    ),
    "qwen3_5-tied": (
        "qwen3_5_text",
        HYBRID
        | {"tie_word_embeddings": True, "num_key_value_heads": 4, "linear_conv_kernel_dim": 2},
    ),
    "qwen3_5_moe": ("qwen3_5_moe_text", BASE),
    # The ratios of the 122B's heads.
    "qwen3_5_moe-wide": (
        "qwen3_5_moe_text",
        BASE
        | {
            "num_attention_heads": 16, "num_key_value_heads": 1, "head_dim": 8,
            "linear_num_value_heads": 8, "num_experts": 12, "num_experts_per_tok": 10,
        },
    ),
    "qwen3_5_moe-odd": (
        "qwen3_5_moe_text",
        BASE
        | ODD
        | {
            "linear_num_key_heads": 3, "linear_num_value_heads": 3, "num_experts": 5,
            "tie_word_embeddings": True,
        },
    ),
    "qwen3_next": ("qwen3_next", HYBRID),
    "qwen3_next-odd": (
        "qwen3_next",
        HYBRID
        | ODD
        | MOE
        | {
            "linear_num_key_heads": 3, "linear_num_value_heads": 9, "linear_key_head_dim": 8,
            "linear_value_head_dim": 20, "norm_topk_prob": False, "mlp_only_layers": [1],
        },
    ),
    "qwen3_next-tied": (
        "qwen3_next",
        HYBRID
        | {
            "tie_word_embeddings": True, "linear_num_key_heads": 4, "decoder_sparse_step": 2,
            "num_experts": 7, "num_experts_per_tok": 5,
            "layer_types": ["full_attention", "linear_attention"] * 2,
        },
    ),
    "qwen3": ("qwen3", ATTENTION),
    "qwen3-odd": ("qwen3", ATTENTION | ODD),
    "qwen3-tied": ("qwen3", ATTENTION | TIED),
    "qwen3_moe": ("qwen3_moe", ATTENTION | MOE),
    "qwen3_moe-odd": (
        "qwen3_moe",
        ATTENTION | ODD | MOE | {"norm_topk_prob": False, "mlp_only_layers": [1]},
    ),
    "qwen3_moe-tied": (
        "qwen3_moe",
        ATTENTION | TIED | MOE | {"decoder_sparse_step": 2, "num_experts_per_tok": 1},
    ),
    "qwen3_moe-window": ("qwen3_moe", ATTENTION | MOE | WINDOW),
    "qwen3-window": ("qwen3", ATTENTION | ODD | WINDOW | {"sliding_window": 64}),
    "qwen2-window": ("qwen2", ATTENTION | WINDOW | {"sliding_window": 1}),
    "qwen2_moe-window": ("qwen2_moe", ATTENTION | SHARED | WINDOW | {"max_window_layers": 28}),
    "gemma3_text": ("gemma3_text", GEMMA),
    "gemma3_text-odd": (
        "gemma3_text",
        GEMMA
        | FIVE
        | {"sliding_window": 70, "attention_bias": True, "tie_word_embeddings": False},
    ),
    "gemma3_text-tied": (
        "gemma3_text",
        GEMMA
        | TIED
        | {"layer_types": None, "num_hidden_layers": 7, "rope_parameters": None}
    ),
    "llama-linear": (
        "llama",
        ATTENTION
        | {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}},
    ),
    "llama": ("llama", ATTENTION | {"rope_parameters": LLAMA3}),
    "llama-odd": ("llama", ATTENTION | FIVE | {"attention_bias": True}),
    "llama-tied": ("llama", ATTENTION | TIED | {"rope_parameters": LLAMA3}),
    "qwen2": ("qwen2", ATTENTION),
    "qwen2-odd": ("qwen2", ATTENTION | FIVE),
    "qwen2-tied": ("qwen2", ATTENTION | TIED),
    "qwen2_moe": ("qwen2_moe", ATTENTION | SHARED),
    "qwen2_moe-odd": (
        "qwen2_moe",
        ATTENTION | FIVE | SHARED | {"norm_topk_prob": True, "mlp_only_layers": [0, 2]},
    ),
    "qwen2_moe-tied": (
        "qwen2_moe",
        ATTENTION
        | TIED
        | SHARED
        | {
            "decoder_sparse_step": 2, "num_experts": 5, "num_experts_per_tok": 5,
            "qkv_bias": False,
        },
    ),
}  # fmt: skip


@cache
def reference(name: str) -> PreTrainedModel:
    """The transformers model of a shape, float32; never ends a sequence by itself."""
    torch.manual_seed(sum(name.encode()) + 1)
    model_type, settings = SHAPES[name]
    model: PreTrainedModel = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(model_type, **settings)
    ).eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith("bias") and "dt_bias" not in parameter_name:
                parameter.normal_(0.0, 0.3)
            else:
                _scale(parameter_name, parameter)
        model.tie_weights()
    model.generation_config.eos_token_id = None
    return model


@cache
def family_checkpoint(name: str) -> Path:
    """A folder with a shape's checkpoint, made once a session."""
    folder = Path(_root().name) / name
    reference(name).save_pretrained(folder)
    return folder


@cache
def _root() -> "tempfile.TemporaryDirectory[str]":
    return tempfile.TemporaryDirectory(prefix="baton-families-")


@cache
def with_dense_draft_layer(name: str) -> Path:
    """A dense Qwen3.5 shape's checkpoint with a random MTP layer."""
    folder = Path(_root().name) / f"{name}-mtp"
    shutil.copytree(family_checkpoint(name), folder)
    config = json.loads((folder / "config.json").read_text())
    config["mtp_num_hidden_layers"] = 1
    (folder / "config.json").write_text(json.dumps(config))
    hidden, size, mlp = config["hidden_size"], config["intermediate_size"], "mtp.layers.0.mlp."
    # The tensors of a layer with one expert, but of that expert.
    sizes = {
        "num_experts": 1, "moe_intermediate_size": 1, "shared_expert_intermediate_size": 1
    }  # fmt: skip
    tensors = {k: v for k, v in _draft_layer(config | sizes).items() if mlp not in k}
    for part, shape in (("gate", (size, hidden)), ("up", (size, hidden)), ("down", (hidden, size))):
        tensors[f"{mlp}{part}_proj.weight"] = torch.randn(shape) * shape[1] ** -0.5
    save_file(tensors, folder / "mtp.safetensors")
    return folder
