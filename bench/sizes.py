"""``python -m bench.sizes``: sequences and tokens that fit on GPUs of 80 and 141 GB, as a table for
docs/sizing.md. Runs on any machine: the sizes are the worker's own arithmetic (engine/gpu.py) for
the memory that nvidia-smi lists.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from unittest.mock import patch

import torch

from engine import gpu
from engine.cache.state_ring import ring_bytes
from engine.model.config import ModelConfig
from engine.model.registry import build, read_config
from transport.wire.layout import CacheLayout, PoolSize

MODEL = Path(__file__).with_name("models") / "qwen3.5-35b-a3b"
PAGE_LEN = 64
NUM_IDS = 248_077
MAX_LEN = 262_144
MAX_DRAFTS = 3
MAX_ROWS = 512
"""The most rows of logits in a pass of a decode or colocated worker."""
CUDA_CONTEXT_BYTES = int(1.0963 * 2**30)
GPUS_MIB = {"80 GB": 81_559, "141 GB": 143_771}
"""Memory of an H100 and of an H200 as nvidia-smi lists it."""


WEIGHTS: dict[str, Callable[[ModelConfig], ModelConfig]] = {
    "BF16": lambda config: config,
    "FP8": ModelConfig.quantised,
    "NVFP4": lambda config: config.rounded().packing(),
    "NVFP4, lm_head too": lambda config: config.rounded(lm_head=True).packing(),
}
SHOWN = ("BF16", "FP8", "NVFP4")


@cache
def model(kind: str, *, drafts: bool) -> tuple[CacheLayout, int]:
    """Layout of the cache, and bytes of the weights of a kind."""
    config = WEIGHTS[kind](read_config(MODEL))
    config = config if drafts else config.without_drafts()
    weights = build(config, torch.bfloat16, torch.device("meta"))
    return config.cache_layout("bfloat16", PAGE_LEN), weights.num_bytes


def pools(total_bytes: int, kind: str, *, drafts: bool) -> PoolSize:
    """State slots and pages of a worker that has the GPU to itself."""
    layout, weights_bytes = model(kind, drafts=drafts)
    max_drafts = MAX_DRAFTS if drafts else 0
    demand = gpu.CacheDemand(
        layout,
        NUM_IDS,
        MAX_ROWS,
        MAX_LEN,
        gpu.GpuPart(),
        max_drafts,
        ring_bytes(layout, max_drafts),
    )
    free = total_bytes - weights_bytes - CUDA_CONTEXT_BYTES
    with (
        patch.object(torch.cuda, "empty_cache", lambda: None),
        patch.object(torch.cuda, "mem_get_info", lambda: (free, total_bytes)),
    ):
        return gpu.pools_that_fit(demand, None, None)


def rows() -> list[str]:
    """The rows of the table: sequences and tokens, without drafts and with them."""
    found = []
    for name, mib in GPUS_MIB.items():
        for weights in SHOWN:
            cells = [f"{name}, {weights}"]
            for drafts in (False, True):
                fit = pools(mib << 20, weights, drafts=drafts)
                cells.append(f"{fit.num_state_slots}; {fit.num_pages * PAGE_LEN:,}")
            found.append(f"| {' | '.join(cells)} |")
    return found


if __name__ == "__main__":
    print("\n".join(rows()))
