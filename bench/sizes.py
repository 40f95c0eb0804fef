"""``python -m bench.sizes``: sequences and tokens that fit on GPUs of 80 and 141 GB, as a table for
docs/sizing.md. Runs on any machine: the sizes are the worker's own arithmetic (engine/gpu.py) for
the memory that nvidia-smi lists.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import torch

from engine import gpu
from engine.kernels.state_ring import ring_bytes
from engine.model.config import ModelConfig
from engine.model.registry import build, read_config
from transport.wire.layout import CacheLayout, PoolSize

MODEL = Path(__file__).with_name("models") / "qwen3.5-35b-a3b"
PAGE_LEN = 64
NUM_IDS = 248_077
MAX_LEN = 262_144
MAX_DRAFTS = 3
CUDA_CONTEXT_BYTES = int(1.0963 * 2**30)


class Role(NamedTuple):
    """``max_rows``: the most rows of logits in a pass. ``decodes``: it verifies drafts."""

    name: str
    max_rows: int
    decodes: bool


ROLES = (Role("decode, colocated", 512, True), Role("prefill", 32, False))
GPUS_MIB = {"80 GB": 81_559, "141 GB": 143_771}
"""Memory of an H100 and of an H200 as nvidia-smi lists it."""


WEIGHTS: dict[str, Callable[[ModelConfig], ModelConfig]] = {
    "BF16": lambda config: config,
    "FP8": ModelConfig.quantised,
    "NVFP4": lambda config: config.rounded().packing(),
    "NVFP4, lm_head too": lambda config: config.rounded(lm_head=True).packing(),
}


@cache
def model(kind: str, *, drafts: bool) -> tuple[CacheLayout, int]:
    """Layout of the cache, and bytes of the weights of a kind."""
    config = WEIGHTS[kind](read_config(MODEL))
    config = config if drafts else config.without_drafts()
    weights = build(config, torch.bfloat16, torch.device("meta"))
    return config.cache_layout("bfloat16", PAGE_LEN), weights.num_bytes


def pools(total_bytes: int, role: Role, kind: str, *, drafts: bool) -> PoolSize:
    """State slots and pages of a worker that has the GPU to itself."""
    layout, weights_bytes = model(kind, drafts=drafts)
    max_drafts = MAX_DRAFTS if drafts and role.decodes else 0
    demand = gpu.CacheDemand(
        layout,
        NUM_IDS,
        role.max_rows,
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
    """The rows of the table: sequences and tokens by role, without drafts and with them."""
    found = []
    for name, mib in GPUS_MIB.items():
        for weights in WEIGHTS:
            cells = [f"{name}, {weights}"]
            for role in ROLES:
                for drafts in (False, True):
                    fit = pools(mib << 20, role, weights, drafts=drafts)
                    cells.append(f"{fit.num_state_slots}; {fit.num_pages * PAGE_LEN:,}")
            found.append(f"| {' | '.join(cells)} |")
    return found


if __name__ == "__main__":
    print("\n".join(rows()))
