"""Model families by the ``model_type`` of their checkpoints: one file each, one line here."""

import torch

from engine.model.config import ModelConfig
from engine.model.qwen35 import Qwen35

MODELS: dict[str, type[Qwen35]] = {
    "qwen3_5_moe": Qwen35,
    "qwen3_5_moe_text": Qwen35,
}


def build(config: ModelConfig, dtype: torch.dtype, device: torch.device) -> Qwen35:
    """The model of ``config.model_type``, its weights allocated but not filled."""
    return MODELS[config.model_type](config, dtype, device)
