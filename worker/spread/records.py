"""The members' records in memory that all processes of the node share.

Each worker owns one segment (transport/copy/shm.py: a locked file, removed when its owner is dead)
with one record, which it alone writes and its peers map. A record is written by one copy, and ends
with a checksum of itself. A record that is read while it is written, or whose writer was killed
within it, has a wrong checksum: it is unreadable until its owner writes it again.
"""

import mmap
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass

from decode.spread_record import Record, Stance
from transport.copy import shm
from transport.wire.errors import PeerGone

_FIELDS = struct.Struct("<QQQQHHHBBBBBBBI")
"""Generation, round, last round, beat, both rows, stance, both numbers of lenders and of drafts,
acceptance, both trials, table."""
_CHECKSUM = struct.Struct("<I")
_CHECKED_FROM = 0x6261746F
"""The checksum's start: memory of zeros, as new memory is, must not pass for a record."""
SIZE_BYTES = _FIELDS.size + _CHECKSUM.size
_READS = 3
"""A reader that comes within a write finds it done at the next look, if its writer lives."""


class OwnRecord:
    """This worker's, of no generation until it is written. Raises SharedMemoryFull."""

    def __init__(self, instance: str) -> None:
        shm.sweep()  # in containers nothing else removes the records of killed workers
        self._segment = shm.Segment(f"spread-{instance}", SIZE_BYTES)
        self._written: Record | None = None
        self.write(Record(generation=0))

    @property
    def handle(self) -> str:
        """What a peer needs to map it."""
        return self._segment.handle

    def write(self, record: Record) -> None:
        if record != self._written:
            self._segment.memory[:SIZE_BYTES] = encode(record)
            self._written = record

    def close(self) -> None:
        self._segment.close()


class PeerRecord:
    """Another worker's, mapped until ``close``; raises PeerGone where there is no such segment."""

    def __init__(self, handle: str) -> None:
        if not handle.startswith(f"{shm.PREFIX}spread-"):
            raise PeerGone(f"{handle[:80]!r} is no record's name")
        self._memory: mmap.mmap = shm.open_segment(handle, SIZE_BYTES)

    def read(self) -> Record | None:
        """The record as it is now; None: its writer was killed while it wrote."""
        for _ in range(_READS):
            record = decode(self._memory[:SIZE_BYTES])
            if record is not None:
                return record
        return None

    def close(self) -> None:
        self._memory.close()


@dataclass(frozen=True)
class Records:
    """This worker's ``own`` record, and what opens another worker's by its handle."""

    own: OwnRecord
    open_peer: Callable[[str], PeerRecord] = PeerRecord


def encode(record: Record) -> bytes:
    fields = _FIELDS.pack(
        record.generation,
        record.round,
        record.last_round,
        record.beat,
        record.rows,
        record.last_rows,
        record.stance,
        record.lenders,
        record.last_lenders,
        record.drafts,
        record.last_drafts,
        record.acceptance,
        record.trial,
        record.last_trial,
        record.table,
    )
    return fields + _CHECKSUM.pack(zlib.crc32(fields, _CHECKED_FROM))


def decode(data: bytes) -> Record | None:
    """None for bytes that are no whole record."""
    fields = data[: _FIELDS.size]
    (checksum,) = _CHECKSUM.unpack_from(data, _FIELDS.size)
    if zlib.crc32(fields, _CHECKED_FROM) != checksum:
        return None
    generation, number, last_round, beat, rows, last_rows, stance, *rest = _FIELDS.unpack(fields)
    if stance not in Stance.__members__.values():
        return None
    return Record(generation, number, Stance(stance), rows, last_round, last_rows, beat, *rest)
