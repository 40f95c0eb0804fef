"""Model families by the ``model_type`` of their checkpoints."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from engine.model import attention_only, gemma3, qwen3_next, qwen35
from engine.model.config import ModelConfig
from engine.model.decoder import Decoder
from engine.model.fields import Fields, read_json
from engine.model.model import Model


@dataclass(frozen=True)
class Family:
    """``read`` makes the configuration of the text model's fields and the whole ``config.json``.
    ``multimodal``: the text model's fields are its ``text_config``."""

    read: Callable[[Fields, dict[str, Any]], ModelConfig]
    multimodal: bool = False
    build: Callable[[ModelConfig, torch.dtype, torch.device], Model] = Decoder


FAMILIES = {
    "qwen3_5_moe": Family(qwen35.read, multimodal=True),
    "qwen3_5_moe_text": Family(qwen35.read),
    "qwen3_5": Family(qwen35.read, multimodal=True),
    "qwen3_5_text": Family(qwen35.read),
    "qwen3_next": Family(qwen3_next.read),
    "qwen3": Family(attention_only.read),
    "qwen3_moe": Family(attention_only.read),
    "qwen2": Family(attention_only.read),
    "qwen2_moe": Family(attention_only.read),
    "llama": Family(attention_only.read),
    "gemma3": Family(gemma3.read, multimodal=True),
    "gemma3_text": Family(gemma3.read),
}


def read_config(folder: Path) -> ModelConfig:
    """Read ``folder``'s config; a ValueError names what is missing, wrong or unsupported."""
    raw = read_json(folder)
    model_type = raw.get("model_type")
    family = FAMILIES.get(str(model_type))
    if family is None:
        raise ValueError(
            f"model_type: {folder / 'config.json'} is {model_type!r} "
            f"({', '.join(map(str, raw.get('architectures') or ['no architectures']))}); "
            f"supported: {', '.join(FAMILIES)}"
        )
    text = raw.get("text_config") if family.multimodal else raw
    if not isinstance(text, dict):
        raise ValueError(f"text_config: {folder / 'config.json'} has none")
    return family.read(Fields(text, folder), raw)


def build(config: ModelConfig, dtype: torch.dtype, device: torch.device) -> Model:
    """The model of ``config.model_type``, its weights allocated but not filled."""
    return FAMILIES[config.model_type].build(config, dtype, device)
