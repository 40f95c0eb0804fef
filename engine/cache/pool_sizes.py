"""Sizes the pools, and lays the cache over one buffer."""

from collections.abc import Callable

import torch
from msgspec.structs import replace

from engine import gpu
from engine.cache.state_ring import ring_bytes
from engine.config import MAX_DECODE_ROWS, EngineConfig
from engine.graphs.prefill_graphs import MAX_PROMPTS
from engine.model.config import ModelConfig
from engine.spread.memory import exchange_layout
from engine.window_pages import num_work_pages
from transport.copy.region import Region
from transport.copy.tensors import CacheTensors
from transport.wire.layout import CacheLayout, PoolSize

BufferFactory = Callable[[int], torch.Tensor]
"""Allocates uint8 memory of a size in bytes on the engine's device; the tensor keeps it alive."""


def sized_cache(
    config: EngineConfig,
    model: ModelConfig,
    layout: CacheLayout,
    num_ids: int,
    max_drafts: int,
    buffer_factory: BufferFactory,
) -> tuple[PoolSize, CacheTensors]:
    """The pools of ``config`` and their tensors. Pools without a given size are sized by the memory
    that is free now. Raises ValueError if they do not fit."""
    # NOTE: an inference tensor could not be written by the copy thread or the allocator.
    with torch.inference_mode(False):
        part = gpu.GpuPart.of(config)
        takes_part = config.spreads or config.lends
        demand = gpu.CacheDemand(
            layout,
            num_ids=num_ids,
            max_sampled=MAX_DECODE_ROWS if config.decodes else MAX_PROMPTS,
            max_seq_len=model.max_position_embeddings,
            part=part,
            max_drafts=max_drafts,
            ring_bytes=ring_bytes(layout, max_drafts + config.spreads),
            spread_bytes=exchange_layout(model).size_bytes if takes_part else 0,
        )
        pools = gpu.pools_that_fit(demand, config.num_pages, config.num_state_slots)
        # On the CPU a pass has a few tokens of a prompt (Kernels.prefill_block).
        num_work = demand.num_work_pages if config.device == "cuda" else num_work_pages(layout, 0)
        pools = replace(pools, num_work_pages=num_work)
        buffer = buffer_factory(Region.of(layout, pools).size_bytes)
        if config.device == "cuda":
            part.hold()
        return pools, CacheTensors.over(buffer, layout, pools)
