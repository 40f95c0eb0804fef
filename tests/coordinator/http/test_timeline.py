"""A record as a timeline."""

from itertools import pairwise
from typing import Any

import msgspec
import pytest

from coordinator.http.timeline import RequestTimeline, timeline
from coordinator.record.record import RequestRecord

HANDED_OFF: dict[str, Any] = {
    "prefill_worker": "p", "decode_worker": "d", "num_prompt": 7, "num_output": 3,
    "received_at": 100.0, "queued_at": 100.0, "placed_at": 100.25, "prefill_wait_s": 0.25,
    "prefill_s": 0.4, "prefilled_at": 101.0, "first_token_at": 101.0, "handoff_placed_at": 101.0,
    "in_socket_s": 0.0, "wait_memory_s": 0.0, "launch_s": 0.001, "copy_s": 0.01,
    "boundary_s": 0.002,
    "transferred_at": 101.05, "first_step_s": 0.02, "first_decode_at": 101.125, "bytes_moved": 4096,
    "drafts_verified": 6, "drafts_accepted": 4, "num_reused": 5, "reused": "peer",
}  # fmt: skip


def told(now: float = 103.0, **fields: Any) -> RequestTimeline:
    record = RequestRecord(request_id="r", coordinator="c", **fields)
    return msgspec.convert(msgspec.to_builtins(timeline(record, now)), RequestTimeline)


def stages(found: RequestTimeline) -> dict[str, tuple[float, float]]:
    return {stage.name: (stage.start_s, stage.duration_s) for stage in found.stages}


def test_a_finished_request_has_its_four_stages() -> None:
    found = told(**HANDED_OFF, state="finished", finish_reason="stop", ended_at=102.0)
    assert stages(found) == {
        "queue": (0.0, 0.5), "prefill": (0.5, 0.5),
        "handoff": (1.0, 0.125), "decode": (1.125, 0.875),
    }  # fmt: skip
    assert (found.duration_s, found.ttft_s, found.bytes_moved) == (2.0, 1.0, 4096)
    assert (found.drafts_verified, found.drafts_accepted) == (6, 4)
    assert (found.cached_tokens, found.reused) == (5, "peer")
    assert [stage.worker for stage in found.stages] == [None, "p", "d", "d"]
    assert not any(stage.open for stage in found.stages)
    handoff = found.stages[2]
    assert sum(handoff.parts.values()) == pytest.approx(handoff.duration_s)
    assert handoff.parts["copy"] == 0.01
    assert found.stages[1].parts == {"compute": 0.4}


def test_an_open_request_goes_on_until_now() -> None:
    at_first = {"received_at": 100.0, "queued_at": 100.0}
    found = told(**at_first)
    assert (stages(found), found.duration_s) == ({"queue": (0.0, 3.0)}, 3.0)
    assert [stage.open for stage in found.stages] == [True]
    found = told(**at_first, state="prefilling", placed_at=101.0)
    assert stages(found) == {"queue": (0.0, 1.0), "prefill": (1.0, 2.0)}
    assert [stage.open for stage in found.stages] == [False, True]


def test_no_handoff_where_one_token_or_one_worker_was_enough() -> None:
    prefilled = {k: HANDED_OFF[k] for k in list(HANDED_OFF)[4:11]} | {"prefill_worker": "b"}
    found = told(**prefilled, state="finished", finish_reason="length", ended_at=101.0)
    assert list(stages(found)) == ["queue", "prefill"]
    found = told(**prefilled, decode_worker="b", state="finished", ended_at=102.0)
    assert stages(found) == {"queue": (0.0, 0.5), "prefill": (0.5, 0.5), "decode": (1.0, 1.0)}


def test_earlier_attempts_come_first() -> None:
    found = told(attempt=2, received_at=100.0, queued_at=101.5)
    assert stages(found) == {"earlier attempts": (0.0, 1.5), "queue": (1.5, 1.5)}
    assert found.attempts == 2


def test_a_failure_is_told() -> None:
    failed = {"state": "failed", "failure_code": "no_worker", "failure_message": "none left"}
    found = told(**failed, received_at=100.0, queued_at=100.0, ended_at=100.5)
    assert found.failure is not None
    assert (found.failure.code, found.failure.message) == ("no_worker", "none left")
    assert stages(found) == {"queue": (0.0, 0.5)}


@pytest.mark.parametrize("ended", [True, False])
def test_however_far_it_came_the_stages_add_up(ended: bool) -> None:
    end = {"state": "cancelled", "ended_at": 102.0} if ended else {}
    for num_known in range(6, len(HANDED_OFF) + 1):
        found = told(**dict(list(HANDED_OFF.items())[:num_known]), **end)
        assert found.stages[0].start_s == 0.0
        for one, other in pairwise(found.stages):
            assert one.start_s + one.duration_s == pytest.approx(other.start_s)
        assert sum(s.duration_s for s in found.stages) == pytest.approx(found.duration_s)
