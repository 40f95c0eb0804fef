"""Percentiles of the handoff's stages, from records."""

import pytest

from bench.handoff_stages import of_records
from coordinator.record.record import HANDOFF_PARTS, RequestRecord, stage_seconds


def record(number: int, **changes) -> RequestRecord:
    """A handoff whose copy took ``number`` ms and moved ``number`` MB."""
    fields = {
        "prefilled_at": 10.0, "handoff_placed_at": 10.001, "transferred_at": 10.2,
        "first_decode_at": 10.3, "in_socket_s": 0.0, "wait_memory_s": 0.002, "launch_s": 0.001,
        "copy_s": number / 1000, "boundary_s": 0.01, "first_step_s": 0.05,
        "handoff_bytes": number * 10**6,
    }  # fmt: skip
    return RequestRecord(request_id=f"r{number}", coordinator="c", **fields | changes)


def test_records_give_exact_percentiles() -> None:
    never_landed = record(500, transferred_at=None)
    found = of_records([*(record(n) for n in range(1, 102)), never_landed])
    assert found["handoffs"] == 101
    assert found["stages"]["copy"] == pytest.approx({"p50_ms": 51, "p90_ms": 91, "p99_ms": 100})
    assert found["stages"]["total"]["p50_ms"] == pytest.approx(300)
    assert found["stages"]["overhead"]["p50_ms"] == pytest.approx(300 - 51 - 10 - 50)
    assert found["gb_per_s_p50"] == pytest.approx(1.0)
    assert found["bytes_p50"] == 51 * 10**6


def test_without_a_handoff_there_is_nothing_to_tell() -> None:
    assert of_records([])["stages"] == {}


def test_parts_add_up_to_the_total_and_an_order_lies_unseen_no_longer_than_it_took() -> None:
    for in_socket_s in (0.0, 0.05, 9.0):
        found = stage_seconds(
            {
                name: getattr(record(20, in_socket_s=in_socket_s), name)
                for name in record(1).__struct_fields__
            }
        )
        assert sum(found[part] for part in HANDOFF_PARTS) == pytest.approx(found["total"])
        assert found["messages"] >= 0.0
        assert found["overhead"] <= found["total"]
