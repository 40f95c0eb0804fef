"""Small random checkpoints of every shape the engine must read, and their transformers twins."""

import json
import tempfile
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig

Naming = Literal["per_expert", "fused", "multimodal", "sharded"]


@dataclass(frozen=True)
class Shape:
    """What differs from ``BASE``, and how the checkpoint is stored."""

    naming: Naming = "per_expert"
    overrides: dict[str, Any] = field(default_factory=dict)


BASE: dict[str, Any] = {
    "vocab_size": 263,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 48,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": False,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
        "mrope_section": [2, 1, 1],
        "mrope_interleaved": True,
    },
    "eos_token_id": 260,
    "attn_implementation": "eager",
}

SHAPES: dict[str, Shape] = {
    "per_expert": Shape(),
    # Six layers, one KV head, as many key as value heads, top-1 routing, kernel 2, tied.
    "lean": Shape(
        overrides={
            "num_hidden_layers": 6,
            "num_key_value_heads": 1,
            "linear_num_key_heads": 4,
            "linear_conv_kernel_dim": 2,
            "num_experts_per_tok": 1,
            "tie_word_embeddings": True,
        }
    ),
    "fused": Shape("fused", {"num_hidden_layers": 5, "num_experts_per_tok": 4}),
    "multimodal": Shape("multimodal", {"linear_num_key_heads": 1}),
    "sharded": Shape("sharded", {"num_hidden_layers": 7, "num_experts": 5}),
    # Every head its own KV, unequal key and value dims, kernel 3, full attention every 2nd layer.
    "odd": Shape(
        overrides={
            "num_hidden_layers": 3,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "num_attention_heads": 3,
            "num_key_value_heads": 3,
            "head_dim": 24,
            "linear_num_value_heads": 6,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 20,
            "linear_conv_kernel_dim": 3,
            "num_experts_per_tok": 3,
            "rope_parameters": {**BASE["rope_parameters"], "partial_rotary_factor": 0.25},
        }
    ),
}


@cache
def reference(name: str) -> Qwen3_5MoeForCausalLM:
    """The transformers model of a shape, float32; never ends a sequence by itself."""
    torch.manual_seed(sum(name.encode()) + 1)
    config = Qwen3_5MoeTextConfig(**BASE | SHAPES[name].overrides)
    model = Qwen3_5MoeForCausalLM(config).eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            _scale(parameter_name, parameter)
        if config.tie_word_embeddings:
            model.model.norm.weight.sub_(0.75)
        model.tie_weights()
    model.generation_config.eos_token_id = None
    return model


@cache
def checkpoint(name: str) -> Path:
    """A folder allocation a shape's checkpoint, made once a session."""
    folder = Path(_root().name) / name
    folder.mkdir()
    write_checkpoint(reference(name), folder, SHAPES[name].naming)
    return folder


@cache
def with_draft_layer(name: str, *, apart: bool = True) -> Path:
    """A shape's checkpoint with a random MTP layer, stored ``apart`` as some releases have it."""
    folder = Path(_root().name) / f"{name}-mtp-{apart}"
    folder.mkdir()
    for file in checkpoint(name).iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    text = config.get("text_config", config)
    text["mtp_num_hidden_layers"] = 1
    (folder / "config.json").write_text(json.dumps(config))
    tensors, file = _draft_layer(text), folder / "mtp.safetensors"
    if not apart:
        file = folder / "model.safetensors"
        tensors |= load_file(file)
    save_file(tensors, file)
    return folder


def _draft_layer(text: dict[str, Any]) -> dict[str, torch.Tensor]:
    torch.manual_seed(7)
    hidden, dim = text["hidden_size"], text["head_dim"]
    heads, kv_heads = text["num_attention_heads"], text["num_key_value_heads"]
    expert, shared = text["moe_intermediate_size"], text["shared_expert_intermediate_size"]
    layer, mlp = "mtp.layers.0.", "mtp.layers.0.mlp."
    shapes: dict[str, tuple[int, ...]] = {
        "mtp.fc.weight": (hidden, 2 * hidden),
        "mtp.norm.weight": (hidden,),
        "mtp.pre_fc_norm_embedding.weight": (hidden,),
        "mtp.pre_fc_norm_hidden.weight": (hidden,),
        layer + "input_layernorm.weight": (hidden,),
        layer + "post_attention_layernorm.weight": (hidden,),
        layer + "self_attn.q_proj.weight": (2 * heads * dim, hidden),
        layer + "self_attn.k_proj.weight": (kv_heads * dim, hidden),
        layer + "self_attn.v_proj.weight": (kv_heads * dim, hidden),
        layer + "self_attn.o_proj.weight": (hidden, heads * dim),
        layer + "self_attn.q_norm.weight": (dim,),
        layer + "self_attn.k_norm.weight": (dim,),
        mlp + "gate.weight": (text["num_experts"], hidden),
        mlp + "shared_expert_gate.weight": (1, hidden),
        mlp + "shared_expert.gate_proj.weight": (shared, hidden),
        mlp + "shared_expert.up_proj.weight": (shared, hidden),
        mlp + "shared_expert.down_proj.weight": (hidden, shared),
    }
    for i in range(text["num_experts"]):
        shapes[f"{mlp}experts.{i}.gate_proj.weight"] = (expert, hidden)
        shapes[f"{mlp}experts.{i}.up_proj.weight"] = (expert, hidden)
        shapes[f"{mlp}experts.{i}.down_proj.weight"] = (hidden, expert)
    tensors = {name: torch.zeros(shape) for name, shape in shapes.items()}
    for name, tensor in tensors.items():
        _scale(name, tensor)
    return tensors


@cache
def _root() -> "tempfile.TemporaryDirectory[str]":
    return tempfile.TemporaryDirectory(prefix="baton-checkpoints-")


def write_checkpoint(model: Qwen3_5MoeForCausalLM, folder: Path, naming: Naming) -> None:
    """Store ``model`` in ``folder`` in one of the layouts found in the wild."""
    if naming == "per_expert":
        model.save_pretrained(folder)
    elif naming == "sharded":
        model.save_pretrained(folder, max_shard_size="200KB")
        assert (folder / "model.safetensors.index.json").exists()
    else:
        _write_fused(model, folder, multimodal=naming == "multimodal")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [261, 260]}))


def _write_fused(model: Qwen3_5MoeForCausalLM, folder: Path, *, multimodal: bool) -> None:
    config = model.config.to_dict()
    tensors = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    if config["tie_word_embeddings"]:
        del tensors["lm_head.weight"]
    if multimodal:
        config = {
            "architectures": ["Qwen3_5MoeForConditionalGeneration"],
            "model_type": "qwen3_5_moe",
            "tie_word_embeddings": config.pop("tie_word_embeddings"),
            "text_config": config,
            "vision_config": {"depth": 1},
        }
        tensors = {
            name.replace("model.", "model.language_model.", 1): tensor
            for name, tensor in tensors.items()
        }
        tensors["model.visual.patch_embed.proj.weight"] = torch.randn(8, 3)
        tensors["mtp.fc.weight"] = torch.randn(8, 16)
        tensors["mtp.layers.0.mlp.experts.0.gate_proj.weight"] = torch.randn(4, 8)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))


KEPT_IN_BF16 = (
    "in_proj_a",
    "in_proj_b",
    "in_proj_ba",
    "mlp.gate",
    "shared_expert_gate",
    "lm_head",
    "embed_tokens",
)


def convert_to_fp8(folder: Path, **settings: Any) -> dict[str, torch.Tensor]:
    """Convert a checkpoint to the official FP8 layout, in place -> what its tensors then mean.

    ``settings`` replace those of its ``quantization_config``.
    """
    tensors = load_file(folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    meant, stored, kept = dict(tensors), dict(tensors), []
    for name, tensor in tensors.items():
        module = name.removesuffix(".weight")
        if tensor.dim() < 2 or "conv1d" in name or module.endswith(KEPT_IN_BF16):
            kept += [module] if module.endswith(KEPT_IN_BF16) else []
            continue
        values, scales = _blockwise(tensor)
        scale_name = f"{name}_scale_inv"
        stored |= {name: values, scale_name: scales}
        meant[name] = _wide(values, scales)
    config["quantization_config"] = {
        "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
        "weight_block_size": [128, 128], "modules_to_not_convert": kept, **settings,
    }  # fmt: skip
    save_file(stored, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return meant


def _blockwise(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Block by block: e4m3 values, and BF16 scales of 448 to the largest value."""
    rows, columns = tensor.shape[-2:]
    shape = (*tensor.shape[:-2], -(-rows // 128), -(-columns // 128))
    values = torch.empty(tensor.shape, dtype=torch.float8_e4m3fn)
    scales = torch.empty(shape, dtype=torch.bfloat16)
    for i in range(shape[-2]):
        for j in range(shape[-1]):
            block = (..., slice(128 * i, 128 * i + 128), slice(128 * j, 128 * j + 128))
            amax = tensor[block].float().abs().amax((-2, -1), keepdim=True)
            scales[..., i, j] = (amax / 448).to(torch.bfloat16)[..., 0, 0]
            scaled = tensor[block].float() / scales[..., i, j, None, None].float()
            values[block] = scaled.clamp(-448, 448).to(torch.float8_e4m3fn)
    return values, scales


def _wide(values: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    rows, columns = values.shape[-2:]
    wide = scales.float().repeat_interleave(128, -2).repeat_interleave(128, -1)
    return values.float() * wide[..., :rows, :columns]


def _scale(name: str, parameter: torch.Tensor) -> None:
    """Random values under which every part matters and logits have real margins."""
    if name.endswith("A_log"):
        parameter.uniform_(0.01, 1.0).log_()
    elif name.endswith("dt_bias"):
        parameter.normal_(0.0, 0.5)
    elif "norm" in name:
        parameter.add_(torch.randn_like(parameter) * 0.1)
    elif name.endswith("embed_tokens.weight"):
        parameter.normal_(0.0, 1.0)
    elif name == "lm_head.weight":
        parameter.normal_(0.0, 2.0 * parameter.shape[-1] ** -0.5)
    elif name.endswith(("out_proj.weight", "o_proj.weight", "down_proj", "down_proj.weight")):
        # Small residual branches: rounding errors grow little from layer to layer.
        parameter.normal_(0.0, 0.3 * parameter.shape[-1] ** -0.5)
    else:
        fan_in = parameter.shape[-1] if "conv1d" not in name else 2
        parameter.normal_(0.0, fan_in**-0.5)
