"""Exporters in this process: shared memory with a cache over it, as a worker would offer it."""

from dataclasses import dataclass
from secrets import token_hex

import torch

from transport.copy.memory import SharedMemory
from transport.copy.region import Region
from transport.copy.selftest import write_pattern
from transport.copy.tensors import CacheTensors
from transport.wire.layout import CacheLayout, PoolSize
from transport.wire.memory_export import MemoryExport

LAYOUT = CacheLayout("bfloat16", 16, 2, 2, 8, 3, 24, 3, 4, 8, 16, num_window_layers=3, window=20)


PLAIN = LAYOUT.without_windows()


def filled(
    buffer: torch.Tensor, size: PoolSize, seed: int, layout: CacheLayout = LAYOUT
) -> CacheTensors:
    """A cache of random content over ``buffer``."""
    cache = CacheTensors.over(buffer, layout, size)
    generator = torch.Generator().manual_seed(seed)
    for tensor in (cache.kv, cache.conv, cache.recurrent, cache.window_pages):
        tensor.copy_(torch.randn(tensor.shape, generator=generator))
    cache.epochs.zero_()
    return cache


def own_cache(size: PoolSize, seed: int, layout: CacheLayout = LAYOUT) -> CacheTensors:
    """A puller's cache, which nobody else opens."""
    buffer = torch.empty(Region.of(layout, size).size_bytes, dtype=torch.uint8)
    return filled(buffer, size, seed, layout)


@dataclass(frozen=True)
class Exporter:
    """A cache that others can open; ``close`` withdraws its name."""

    instance: str
    memory: SharedMemory
    cache: CacheTensors
    export: MemoryExport

    @classmethod
    def start(cls, size: PoolSize, seed: int) -> "Exporter":
        instance = "test-" + token_hex(4)
        memory = SharedMemory(instance)
        cache = filled(memory.allocate(Region.of(LAYOUT, size).size_bytes), size, seed)
        write_pattern(cache, instance)
        export = MemoryExport("shm", memory.handle, memory.size_bytes, LAYOUT, size)
        return cls(instance, memory, cache, export)

    def close(self) -> None:
        self.memory.close()
