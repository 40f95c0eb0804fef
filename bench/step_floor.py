"""The least time of a decode step: its bytes, read once, at the speed of a device copy.

Routing is taken to be uniform, as it is with random weights.
"""

import torch

from engine.model.config import ModelConfig
from engine.model.layers import Attention
from engine.model.registry import build
from engine.model.weights import MoeWeights

COPY_BYTES_PER_S = {"H100": 3.0e12, "H200": 4.3e12}
"""A device copy, by a part of the GPU's name."""
ITEM_BYTES, STATE_ITEM_BYTES = 2, 4


def step_bytes(config: ModelConfig, rows: int, context: int) -> float:
    """Bytes of weights, pages and states that a step of ``rows`` rows moves, each with ``context``
    tokens in the cache. Of the input embeddings a step reads next to nothing."""
    model = build(config.without_drafts(), torch.bfloat16, torch.device("meta"))
    moved = float(model.num_bytes)
    if not config.tie_word_embeddings:
        moved -= config.vocab_size * config.hidden_size * ITEM_BYTES
    for weights in model.weights.layers:
        if isinstance(mlp := weights.mlp, MoeWeights):
            idle = (1 - mlp.top_k / mlp.gate_up.shape[0]) ** rows
            moved -= idle * (mlp.gate_up.nbytes + mlp.down.nbytes)
    for layer in config.layers:
        mixer = layer.mixer
        if isinstance(mixer, Attention):
            per_token = 2 * mixer.num_key_value_heads * mixer.head_dim * ITEM_BYTES
            moved += rows * min(context, mixer.window or context) * per_token
        else:
            moved += 2 * rows * mixer.value_dim * mixer.linear_key_head_dim * STATE_ITEM_BYTES
    return moved


def floor_ms(config: ModelConfig, rows: int, context: int, gpu: str) -> float | None:
    """The floor in ms on a GPU with this name; None for one whose copy speed is not listed."""
    speeds = [speed for name, speed in COPY_BYTES_PER_S.items() if name in gpu]
    return 1e3 * step_bytes(config, rows, context) / speeds[0] if speeds else None
