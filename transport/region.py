"""Where the parts of a worker's cache memory lie inside its one exported region.

One allocation a worker, exported once, never freed while the process lives:

    generations  [num_state_slots] int64   bumped each time a state slot changes hands
    kv           [num_pages, *page_shape]
    conv         [num_state_slots, *conv_shape]
    recurrent    [num_state_slots, *recurrent_shape] float32

Offsets follow from layout and pool size alone, so exporter and puller agree on them without
sending them.
"""

from dataclasses import dataclass

from transport.layout import DTYPE_BYTES, CacheLayout, PoolSize

ALIGNMENT_BYTES = 4096


@dataclass(frozen=True)
class Region:
    """Byte offsets of the four parts, and the size of the whole."""

    generations: int
    kv: int
    conv: int
    recurrent: int
    size_bytes: int

    @classmethod
    def of(cls, layout: CacheLayout, pools: PoolSize) -> "Region":
        generations = 0
        kv = _aligned(generations + pools.num_state_slots * 8)
        conv = _aligned(kv + pools.num_pages * layout.page_bytes)
        conv_elements = layout.conv_shape[0] * layout.conv_shape[1] * layout.conv_shape[2]
        conv_bytes = conv_elements * DTYPE_BYTES[layout.kv_dtype]
        recurrent = _aligned(conv + pools.num_state_slots * conv_bytes)
        recurrent_bytes = layout.state_slot_bytes - conv_bytes
        size = _aligned(recurrent + pools.num_state_slots * recurrent_bytes)
        return cls(generations, kv, conv, recurrent, size)


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
