"""The description of a worker's cache memory that peers need to open it."""

from typing import Literal

from transport.wire.fields import Positive, WireStruct
from transport.wire.layout import CacheLayout, PoolSize

MemoryKind = Literal["shm", "cuda-ipc"]


class MemoryExport(WireStruct, frozen=True):
    """One worker's cache memory, as a peer can open it.

    ``handle`` is the name of a shared-memory segment, or a CUDA IPC handle in hex. ``layout`` and
    ``pools`` determine where its parts are (transport/copy/region.py).
    """

    kind: MemoryKind
    handle: str
    size_bytes: Positive
    layout: CacheLayout
    pools: PoolSize
