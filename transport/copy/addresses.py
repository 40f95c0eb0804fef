"""Fills the table of kernel.py: the addresses of a copy's blocks at both ends."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from transport.copy.kernel import BlockBytes
from transport.copy.pull import Wanted
from transport.copy.region import Region
from transport.copy.tensors import CacheTensors
from transport.wire.memory_export import MemoryExport

_EPOCH_BYTES = 8


@dataclass(frozen=True)
class Parts:
    """The addresses of a cache's parts in this process."""

    epochs: int
    kv: int
    conv: int
    recurrent: int
    windows: int

    @classmethod
    def at(cls, address: int, region: Region) -> "Parts":
        return cls(
            address + region.epochs,
            address + region.kv,
            address + region.conv,
            address + region.recurrent,
            address + region.windows,
        )

    @classmethod
    def of(cls, cache: CacheTensors) -> "Parts":
        parts = cache.epochs, cache.kv, cache.conv, cache.recurrent, cache.window_pages
        return cls(*(part.data_ptr() for part in parts))


@dataclass(frozen=True)
class CacheAddresses:
    """The parts of a worker's pools and of its probe; valid while its memory is open."""

    pools: Parts
    probe: Parts

    @classmethod
    def at(cls, address: int, memory: MemoryExport) -> "CacheAddresses":
        """The addresses in exported memory that was opened at ``address``."""
        region = Region.of(memory.layout, memory.pools)
        probe = Region.of_probe(memory.layout)
        return cls(Parts.at(address, region), Parts.at(address + region.probe, probe))

    @classmethod
    def of(cls, cache: CacheTensors) -> "CacheAddresses":
        assert cache.probe is not None, "a worker's region has a probe"
        return cls(Parts.of(cache), Parts.of(cache.probe))

    def parts(self, wanted: Wanted) -> Parts:
        """The addresses that a handoff reads or writes."""
        return self.probe if wanted.in_probe else self.pools


@dataclass(frozen=True)
class CopySizes:
    """What handoffs copy: blocks of these sizes, and of each state the window pages that it has
    (CacheLayout.num_window_pages)."""

    block: BlockBytes
    ring_pages: int
    page_size: int

    @classmethod
    def of(cls, cache: CacheTensors) -> "CopySizes":
        return cls(BlockBytes.in_cache(cache), cache.windows.shape[1], cache.kv.shape[3])

    def num_windows(self, wanted: Wanted) -> int:
        """Number of window pages of a handoff."""
        num_tokens = 0 if wanted.in_probe else wanted.offer.num_tokens
        return min(self.ring_pages, -(-num_tokens // self.page_size))

    def counts(self, wanted: Sequence[Wanted]) -> tuple[int, int, int]:
        """Number of pages, of states and of window pages of these handoffs."""
        num_windows = sum(map(self.num_windows, wanted)) if self.ring_pages else 0
        return sum(len(each.block_table) for each in wanted), len(wanted), num_windows

    def num_bytes(self, wanted: Wanted) -> int:
        return self.block.of(*self.counts([wanted]))


def fill_table(
    table: np.ndarray,
    words: np.ndarray,
    wanted: Sequence[Wanted],
    exporters: Sequence[CacheAddresses],
    own: CacheAddresses,
    sizes: CopySizes,
) -> None:
    """Fill ``table`` [blocks, 2] int64 as kernel.py documents it: source and target of each page of
    all handoffs, then of each conv state, of each recurrent state and of each window page; and
    ``words`` [handoffs] int64 with the addresses of the exporters' epochs. ``exporters`` has one
    for each handoff."""
    num_handoffs = len(wanted)
    page, conv = 0, sizes.counts(wanted)[0]
    window = conv + 2 * num_handoffs
    for i, (each, exporter) in enumerate(zip(wanted, exporters, strict=True)):
        source, target = exporter.parts(each), own.parts(each)
        offer, end = each.offer, page + len(each.block_table)
        table[page:end, 0] = offer.block_table
        table[page:end, 1] = each.block_table
        table[page:end] *= sizes.block.page
        table[page:end] += source.kv, target.kv
        table[conv + i] = (
            source.conv + offer.state_slot * sizes.block.conv,
            target.conv + each.state_slot * sizes.block.conv,
        )
        table[conv + num_handoffs + i] = (
            source.recurrent + offer.state_slot * sizes.block.recurrent,
            target.recurrent + each.state_slot * sizes.block.recurrent,
        )
        if num_windows := sizes.num_windows(each):
            ring = np.arange(num_windows) * sizes.block.window
            ring_bytes = sizes.ring_pages * sizes.block.window
            rows = table[window : window + num_windows]
            rows[:, 0] = source.windows + offer.state_slot * ring_bytes + ring
            rows[:, 1] = target.windows + each.state_slot * ring_bytes + ring
            window += num_windows
        words[i] = source.epochs + _EPOCH_BYTES * offer.state_slot
        page = end
