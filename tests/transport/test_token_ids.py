"""Token ids as 32-bit integers."""

import sys

import pytest

from transport.wire import token_ids
from transport.wire.token_ids import from_wire, packed, to_wire


def test_the_wire_carries_four_little_endian_bytes_an_id() -> None:
    assert to_wire(packed([1, 248_319])) == b"\x01\0\0\0" + (248_319).to_bytes(4, "little")
    assert from_wire(to_wire(packed(range(5)))) == packed(range(5))
    assert from_wire(b"") == packed()


def test_a_machine_of_the_other_byte_order_sends_the_same(monkeypatch) -> None:
    other = "big" if sys.byteorder == "little" else "little"
    monkeypatch.setattr(token_ids.sys, "byteorder", other)
    ids = packed([1, 2])
    sent = to_wire(ids)
    assert from_wire(sent) == ids == packed([1, 2])


@pytest.mark.parametrize("num_bytes", [1, 3, 7])
def test_bytes_that_end_within_an_id_are_refused(num_bytes: int) -> None:
    with pytest.raises(ValueError, match="bytes length not a multiple of item size"):
        from_wire(bytes(num_bytes))


def test_an_id_beyond_32_bits_is_refused() -> None:
    with pytest.raises(OverflowError):
        packed([2**31])
