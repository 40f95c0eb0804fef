"""Records that processes share: written by one, read by others, whatever becomes of the writer."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from secrets import token_hex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decode.spread_record import Record, Stance
from transport.copy import shm
from transport.wire.errors import PeerGone
from worker.spread.records import SIZE_BYTES, OwnRecord, PeerRecord, decode, encode

DEADLINE_S = 60.0
WRITER = """
import sys
from decode.spread_record import Record, Stance
from worker.spread.records import OwnRecord
own, number = OwnRecord(sys.argv[1]), 0
print(own.handle, flush=True)
while True:
    number += 1
    rows = number % 500
    own.write(Record(number, number, Stance(number % 3), rows, number - 1, rows // 2, number))
"""

RECORDS = st.builds(
    Record,
    st.integers(0, 2**40), st.integers(1, 2**40), st.sampled_from(Stance), st.integers(0, 512),
    st.integers(0, 2**40), st.integers(0, 512), st.integers(0, 2**40), st.integers(0, 7),
    st.integers(0, 7), st.integers(0, 4), st.integers(0, 4), st.integers(0, 100),
    st.integers(0, 255), st.integers(0, 255), st.integers(0, 2**32 - 1),
)  # fmt: skip


@pytest.fixture
def own() -> Iterator[OwnRecord]:
    own = OwnRecord(f"d-{token_hex(4)}")
    yield own
    own.close()


def consistent(record: Record) -> bool:
    number = record.generation
    if number == 0:
        return record == Record(0)
    rows = number % 500
    expected = Record(number, number, Stance(number % 3), rows, number - 1, rows // 2, number)
    return record == expected


def test_what_is_written_is_read(own: OwnRecord) -> None:
    peer = PeerRecord(own.handle)
    assert peer.read() == Record(0)
    for record in (
        Record(7, 3, Stance.COMMITTED, 512, 2, 511, 9),
        Record(7, 4, Stance.UNAVAILABLE),
    ):
        own.write(record)
        assert peer.read() == record
    peer.close()


@given(before=RECORDS, after=RECORDS, cut=st.integers(0, SIZE_BYTES))
def test_a_record_that_is_half_written_passes_for_no_other_one(
    before: Record, after: Record, cut: int
) -> None:
    torn = encode(after)[:cut] + encode(before)[cut:]
    assert decode(torn) in (None, before, after)


def test_new_memory_has_no_record() -> None:
    assert decode(bytes(SIZE_BYTES)) is None
    assert decode(b"\xff" * SIZE_BYTES) is None


def test_a_segment_that_is_no_record_is_refused(own: OwnRecord) -> None:
    other = shm.Segment(f"d-{token_hex(4)}", SIZE_BYTES)
    for handle in (other.handle, "../etc/passwd", "", own.handle + "x"):
        with pytest.raises(PeerGone):
            PeerRecord(handle)
    other.close()


def test_a_reader_sees_whole_records_of_a_process_that_is_killed_while_it_writes() -> None:
    name = f"d-{token_hex(4)}"
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, name], stdout=subprocess.PIPE, text=True
    )
    try:
        assert writer.stdout is not None
        handle = writer.stdout.readline().strip()
        peer = PeerRecord(handle)
        seen: set[int] = set()
        deadline = time.monotonic() + DEADLINE_S
        while len(seen) < 2_000:
            assert time.monotonic() < deadline, f"the writer wrote {len(seen)} records"
            record = peer.read()
            # A writer that was put off its core in the middle is unreadable for that long.
            if record is not None:
                assert consistent(record)
                seen.add(record.generation)
        writer.send_signal(signal.SIGKILL)
        writer.wait(DEADLINE_S)
        left = [peer.read() for _ in range(3)]
        assert left[0] == left[1] == left[2]
        assert left[0] is None or consistent(left[0])
        assert handle in shm.sweep(), "the lock of a dead owner is free"
        assert peer.read() == left[0], "it stays mapped"
        peer.close()
    finally:
        writer.kill()
        writer.wait(DEADLINE_S)
