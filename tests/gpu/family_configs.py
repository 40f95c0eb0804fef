"""Configurations of other model families: four layers at real widths, fewer ids."""

import json
from pathlib import Path
from typing import Any

from tests.gpu.teacher_forced import VOCAB

MODELS = Path(__file__).parents[2] / "bench/models"
NAMED = ("llama-3.1-8b", "qwen3-0.6b", "qwen3.5-9b", "qwen3-30b-a3b", "qwen3.5-122b-a10b")
"""Folders of bench/models beside the full-size model."""
OTHERS: dict[str, dict[str, Any]] = {
    "qwen2.5-7b": {
        "model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944,
        "num_attention_heads": 28, "num_key_value_heads": 4,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    },
    "gemma-3-12b": {
        "model_type": "gemma3_text", "hidden_size": 3840, "intermediate_size": 15360,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256,
        "sliding_window": 1024, "hidden_activation": "gelu_pytorch_tanh",
        "layer_types": ["sliding_attention", "full_attention"] * 2, "tie_word_embeddings": False,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
        },
    },
    "qwen3-next-80b-a3b": {
        "model_type": "qwen3_next", "num_experts": 128,
        "layer_types": [*["linear_attention"] * 3, "full_attention"],
    },
    "qwen1.5-moe-a2.7b": {"model_type": "qwen2_moe"},
    "qwen3-235b-a22b": {
        "model_type": "qwen3_moe", "hidden_size": 4096, "num_attention_heads": 64,
        "num_key_value_heads": 4, "head_dim": 128, "num_experts": 32, "num_experts_per_tok": 8,
        "moe_intermediate_size": 1536, "norm_topk_prob": True,
    },
    "heads-80": {
        "model_type": "llama", "hidden_size": 2560, "intermediate_size": 6912,
        "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 16384,
    },
    "heads-96": {
        "model_type": "llama", "hidden_size": 1536, "intermediate_size": 4096,
        "num_attention_heads": 16, "num_key_value_heads": 8, "max_position_embeddings": 16384,
    },
}  # fmt: skip
"""Settings of models without a folder in bench/models, beside those that transformers defaults to
(of Qwen3-Next's 512 experts, 128; of 235B-A22B's 128, 32; Gemma's lm_head apart, whose own
embeddings would decide)."""


FEWER: dict[str, dict[str, Any]] = {"qwen3.5-122b-a10b": {"num_experts": 64}}
"""Less than the model has, for transformers' float32 to fit beside it."""


def four_layers(name: str) -> dict[str, Any]:
    """A model's config.json with four layers and fewer ids."""
    settings = OTHERS.get(name)
    if settings is None:
        settings = json.loads((MODELS / name / "config.json").read_text())
    text: dict[str, Any] = dict(settings.get("text_config", settings))
    text |= {"num_hidden_layers": 4, "vocab_size": VOCAB} | FEWER.get(name, {})
    if "layer_types" in text:
        text["layer_types"] = text["layer_types"][:4]
    return {
        key: value for key, value in text.items() if key not in ("bos_token_id", "eos_token_id")
    }
