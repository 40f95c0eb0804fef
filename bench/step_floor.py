"""The least time of a decode step: its bytes, read once, at the speed of a device copy.

Routing is taken to be uniform, as it is with random weights.
"""

import torch

from engine.model.config import ModelConfig
from engine.model.layers import Attention, Moe
from engine.model.registry import build

COPY_BYTES_PER_S = {"H100": 3.0e12, "H200": 4.3e12}
"""A device copy, by a part of the GPU's name."""
ITEM_BYTES, STATE_ITEM_BYTES = 2, 4


def step_bytes(config: ModelConfig, rows: int, context: int) -> float:
    """Bytes of weights, pages and states that a step of ``rows`` rows moves, each row with
    ``context`` tokens in the cache. Of the input embeddings it reads next to nothing."""
    moved = float(build(config, torch.bfloat16, torch.device("meta")).num_bytes)
    if not config.tie_word_embeddings:
        moved -= config.vocab_size * config.hidden_size * ITEM_BYTES
    for layer in config.layers:
        if isinstance(layer.mlp, Moe):
            moe = layer.mlp
            idle = moe.num_experts * (1 - moe.num_experts_per_tok / moe.num_experts) ** rows
            moved -= 3 * idle * config.hidden_size * moe.moe_intermediate_size * ITEM_BYTES
        mixer = layer.mixer
        if isinstance(mixer, Attention):
            per_token = 2 * mixer.num_key_value_heads * mixer.head_dim * ITEM_BYTES
            moved += rows * context * per_token
        else:
            state = mixer.value_dim * mixer.linear_key_head_dim * STATE_ITEM_BYTES
            moved += 2 * rows * state
    return moved


def floor_ms(config: ModelConfig, rows: int, context: int, gpu: str) -> float | None:
    """The floor in ms on a GPU with this name; None for one whose copy speed is not listed."""
    speeds = [speed for name, speed in COPY_BYTES_PER_S.items() if name in gpu]
    return 1e3 * step_bytes(config, rows, context) / speeds[0] if speeds else None
