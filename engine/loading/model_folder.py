"""Reads the model that the settings make of a checkpoint folder, before any tensor is read."""

from dataclasses import replace

import torch

from engine.config import EngineConfig
from engine.kernels.triton_support import unsupported
from engine.loading import checkpoint
from engine.model.config import ModelConfig
from engine.model.registry import build, read_config
from engine.quantized.packed import drawn_names, packed_names


def read_model(config: EngineConfig) -> tuple[ModelConfig, list[checkpoint.Entry]]:
    """The model of ``config.model_dir`` as it will be served, with or without its draft layer and
    in the quantisation asked for, and its tensors (none with dummy weights).

    Raises ValueError naming the setting for a folder or config that cannot be served, and
    CheckpointError (a ValueError) naming the tensor or file for a bad checkpoint.
    """
    model = read_config(config.model_dir)
    if config.num_valid_ids is not None and config.num_valid_ids > model.vocab_size:
        raise ValueError(
            f"num_valid_ids: {config.num_valid_ids} exceeds the vocabulary of {model.vocab_size}"
        )
    drafts = model.num_mtp_layers > 0 and config.max_drafts > 0
    entries: list[checkpoint.Entry] = []
    if config.load_format != "dummy":
        entries = checkpoint.read_entries(config.model_dir, mtp=drafts)
        drafts = drafts and checkpoint.has_draft_layer(entries)
    if not drafts:
        model = model.without_drafts()
    if config.quantize in ("fp8", "fp8-lm-head"):
        model = model.quantised(lm_head=config.quantize == "fp8-lm-head")
    elif config.quantize == "dequantize":
        model = model.dequantised()
    elif config.quantize in ("nvfp4", "nvfp4-lm-head"):
        rounded = model.rounded(lm_head=config.quantize == "nvfp4-lm-head")
        model = _unpacked_by_kernels(rounded, config)
    elif model.stored.formats:
        model = _as_stored(model, entries, config)
    if config.load_format == "dummy":
        model = replace(model, quantization=model.quantization.drawn())
    problem = unsupported(model, config.torch_dtype)
    # NOTE: hybrid models with experts run on PyTorch's kernels, with a warning.
    if problem and config.device == "cuda" and not model.is_hybrid_moe:
        raise ValueError(f"device: {model.model_type} runs on CPUs only with {problem}")
    return model, entries


def _unpacked_by_kernels(model: ModelConfig, config: EngineConfig) -> ModelConfig:
    """The model with weights that stay in NVFP4 if it is for a GPU."""
    if config.device != "cuda":
        return model
    if problem := unsupported(model, config.torch_dtype):
        raise ValueError(
            f"quantize: nvfp4 on a GPU takes a model that the Triton kernels support, not {problem}"
        )
    return model.packing()


def _as_stored(
    model: ModelConfig, entries: list[checkpoint.Entry], config: EngineConfig
) -> ModelConfig:
    """The model of a quantised checkpoint: on a GPU with weights that stay packed. Raises
    ValueError for a GPU and weights that no kernel computes with."""
    plan = build(model, config.torch_dtype, torch.device("meta")).plan
    if config.load_format == "dummy":
        names = drawn_names(plan, model.stored)
    else:
        names = packed_names(plan, entries, model.stored)
    model = model.packed(names)
    if config.device != "cuda":
        return model
    others = [each for each in plan.split if each not in names and not each.startswith("mtp.")]
    problem = unsupported(model, config.torch_dtype)
    if not names or others or problem:
        raise ValueError(
            f"device: weights in {model.stored.name} run on CPUs only; on GPUs weights in NVFP4, "
            f"int4 and symmetric int8 do, if experts are so in all layers, of a model that the "
            f"Triton kernels support{f', not {problem}' if problem else ''}; --quantize dequantize "
            f"makes weights bfloat16 at load, --quantize fp8 makes them FP8"
        )
    return model.packing()
