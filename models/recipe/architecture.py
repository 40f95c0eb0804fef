"""The shape of the tiny model and the form in which it is stored."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

VOCAB_SIZE = 1344  # 1306 tokenizer ids, padded to a multiple of 64 as in the real model
ENDOFTEXT, IM_END = 1280, 1282
WEIGHTS = "model.safetensors"
LAYERS = (["linear_attention"] * 3 + ["full_attention"]) * 2

CONFIG = {
    "architectures": ["Qwen3_5MoeForCausalLM"],
    "model_type": "qwen3_5_moe_text",
    "dtype": "bfloat16",
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 256,
    "num_hidden_layers": len(LAYERS),
    "layer_types": LAYERS,
    "full_attention_interval": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "attn_output_gate": True,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "partial_rotary_factor": 0.25,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.25,
        "mrope_section": [3, 3, 2],
        "mrope_interleaved": True,
    },
    "max_position_embeddings": 4096,
    "linear_conv_kernel_dim": 4,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "mamba_ssm_dtype": "float32",
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 128,
    "router_aux_loss_coef": 0.001,
    "output_router_logits": False,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "initializer_range": 0.02,
    "tie_word_embeddings": False,
    "use_cache": True,
    "bos_token_id": None,
    "eos_token_id": IM_END,
    "pad_token_id": ENDOFTEXT,
}
MTP = {"mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": False}
"""Fields added to the config once the draft layer is trained."""
GENERATION = {
    "do_sample": False,
    "eos_token_id": [IM_END, ENDOFTEXT],
    "pad_token_id": ENDOFTEXT,
}


def stored_dtype(name: str) -> torch.dtype:
    """BF16, except the two tensors that the real checkpoint keeps in FP32."""
    keep = name.endswith(("linear_attn.A_log", "linear_attn.norm.weight"))
    return torch.float32 if keep else torch.bfloat16


def save(model: torch.nn.Module, out: Path) -> None:
    """Write config and weights in the published text-only layout."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    (out / "generation_config.json").write_text(json.dumps(GENERATION, indent=2) + "\n")
    tensors = {
        name: tensor.detach().to("cpu", stored_dtype(name)).contiguous()
        for name, tensor in model.state_dict().items()
    }
    save_file(tensors, out / WEIGHTS, metadata={"format": "pt"})


def add_draft(tensors: dict[str, torch.Tensor], out: Path) -> None:
    """Put the tensors of a draft layer beside the model's, in the place of an earlier one."""
    trunk = {n: t for n, t in load_file(out / WEIGHTS).items() if not n.startswith("mtp.")}
    save_file({**trunk, **tensors}, out / WEIGHTS, metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps({**CONFIG, **MTP}, indent=2) + "\n")
