"""Fills the table of kernel.py: the addresses of a copy's blocks at both ends."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from transport.copy.kernel import BlockBytes
from transport.copy.pull import Wanted
from transport.copy.region import PROBE, Region
from transport.copy.tensors import CacheTensors
from transport.wire.memory_export import MemoryExport

_EPOCH_BYTES = 8


@dataclass(frozen=True)
class Parts:
    """The addresses of a cache's four parts in this process."""

    epochs: int
    kv: int
    conv: int
    recurrent: int

    @classmethod
    def at(cls, address: int, region: Region) -> "Parts":
        return cls(
            address + region.epochs,
            address + region.kv,
            address + region.conv,
            address + region.recurrent,
        )

    @classmethod
    def of(cls, cache: CacheTensors) -> "Parts":
        return cls(*(t.data_ptr() for t in (cache.epochs, cache.kv, cache.conv, cache.recurrent)))


@dataclass(frozen=True)
class CacheAddresses:
    """The parts of a worker's pools and of its probe; valid while its memory is open."""

    pools: Parts
    probe: Parts

    @classmethod
    def at(cls, address: int, memory: MemoryExport) -> "CacheAddresses":
        """The addresses in exported memory that was opened at ``address``."""
        region = Region.of(memory.layout, memory.pools)
        probe = Region.without_probe(memory.layout, PROBE)
        return cls(Parts.at(address, region), Parts.at(address + region.probe, probe))

    @classmethod
    def of(cls, cache: CacheTensors) -> "CacheAddresses":
        assert cache.probe is not None, "a worker's region has a probe"
        return cls(Parts.of(cache), Parts.of(cache.probe))

    def parts(self, wanted: Wanted) -> Parts:
        """The addresses that a handoff reads or writes."""
        return self.probe if wanted.in_probe else self.pools


def fill_table(
    table: np.ndarray,
    words: np.ndarray,
    wanted: Sequence[Wanted],
    exporters: Sequence[CacheAddresses],
    own: CacheAddresses,
    sizes: BlockBytes,
) -> None:
    """Fill ``table`` [blocks, 2] int64 as kernel.py documents it: source and target of each page of
    all handoffs, then of each conv state, then of each recurrent state; and ``words`` [handoffs]
    int64 with the addresses of the exporters' epochs. ``exporters`` has one for each handoff."""
    num_handoffs = len(wanted)
    page, conv = 0, len(table) - 2 * num_handoffs
    for i, (each, exporter) in enumerate(zip(wanted, exporters, strict=True)):
        source, target = exporter.parts(each), own.parts(each)
        offer, end = each.offer, page + len(each.block_table)
        table[page:end, 0] = offer.block_table
        table[page:end, 1] = each.block_table
        table[page:end] *= sizes.page
        table[page:end] += source.kv, target.kv
        table[conv + i] = (
            source.conv + offer.state_slot * sizes.conv,
            target.conv + each.state_slot * sizes.conv,
        )
        table[conv + num_handoffs + i] = (
            source.recurrent + offer.state_slot * sizes.recurrent,
            target.recurrent + each.state_slot * sizes.recurrent,
        )
        words[i] = source.epochs + _EPOCH_BYTES * offer.state_slot
        page = end
