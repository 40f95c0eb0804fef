"""The layout of a worker's exported region: where the parts of its cache are.

Each worker has one region: allocated and exported once, never freed while the process lives.

    epochs       [num_slots] int64    incremented when a slot gets another sequence or prefix
    kv           [num_pages, *page_shape]
    conv         [num_slots, *conv_shape]
    recurrent    [num_slots, *recurrent_shape] float32
    windows      [num_slots * ring_pages + num_work_pages, *window_page_shape]

Behind them is the *probe*: the first four parts once more, for ``PROBE`` pages and state slots. No
request uses it. The content of its first half is known, so a peer can pull it at any time, also
while the pools are full, to test the path between the two (selftest.py).

``CacheLayout.num_slots`` counts the state slots and, for a model without states, the empty slots of
kept prefixes. Layout and pool size determine the offsets, so exporter and puller do not send them.
"""

from dataclasses import dataclass, replace

from transport.wire.layout import CacheLayout, PoolSize

ALIGNMENT_BYTES = 4096
PROBE = PoolSize(num_pages=32, num_state_slots=2)
"""Twice as much as a prompt of 16 pages, 81 MiB at the full model's size: a worker may export one
half and pull into the other at the same time."""


@dataclass(frozen=True)
class Region:
    """Byte offsets of the parts, and the size of the region."""

    epochs: int
    kv: int
    conv: int
    recurrent: int
    windows: int
    probe: int
    size_bytes: int

    @classmethod
    def of(cls, layout: CacheLayout, pools: PoolSize) -> "Region":
        """A worker's whole region."""
        region, probe = cls.without_probe(layout, pools), cls.of_probe(layout)
        return replace(region, size_bytes=region.size_bytes + probe.size_bytes)

    @classmethod
    def of_probe(cls, layout: CacheLayout) -> "Region":
        """The probe alone."""
        return cls.without_probe(layout.without_windows(), PROBE)

    @classmethod
    def without_probe(cls, layout: CacheLayout, pools: PoolSize) -> "Region":
        """The parts of the pools alone."""
        epochs, num_slots = 0, layout.num_slots(pools)
        kv = _aligned(epochs + num_slots * 8)
        conv = _aligned(kv + pools.num_pages * layout.page_bytes)
        recurrent = _aligned(conv + num_slots * layout.conv_bytes)
        windows = _aligned(recurrent + num_slots * layout.recurrent_bytes)
        num_window_pages = num_slots * layout.ring_pages + pools.num_work_pages
        size = _aligned(windows + num_window_pages * layout.window_page_bytes)
        return cls(epochs, kv, conv, recurrent, windows, size, size)


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
