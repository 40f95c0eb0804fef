"""Three witnesses: who contradicts whom is found, and only that."""

import pytest

from bench.harness.client.record import Failure, Record, Usage
from bench.harness.scale.agreement import End, Seen, seen, unsettled, with_coordinator, with_redis


def record(**fields: object) -> Record:
    defaults = {"due_at_s": 1.0, "sent_at_s": 1.0, "first_byte_at_s": 2.0, "done_at_s": 3.0}
    return Record(streamed=True, **{**defaults, **fields})  # type: ignore[arg-type]


FULL = Usage(prompt_tokens=3, completion_tokens=8, total_tokens=11)


@pytest.mark.parametrize(
    ("fields", "end"),
    [
        ({"finish_reason": "length", "usage": FULL}, End.FINISHED),
        ({"finish_reason": "length", "token_ids": (1,) * 8}, End.FINISHED),
        ({"finish_reason": "stop", "usage": FULL}, End.LOST),
        ({"finish_reason": "length", "usage": Usage(3, 7, 10)}, End.LOST),
        ({"finish_reason": "length"}, End.LOST),
        ({"failure": Failure.HTTP, "status": 503, "retry_after": "2"}, End.REFUSED),
        ({"failure": Failure.HTTP, "status": 503}, End.FAILED),
        ({"failure": Failure.HTTP, "status": 500}, End.FAILED),
        ({"failure": Failure.STREAM_ERROR}, End.FAILED),
        ({"failure": Failure.DROPPED}, End.LOST),
        ({"failure": Failure.TRUNCATED}, End.LOST),
        ({"failure": Failure.TIMEOUT}, End.LOST),
    ],
)
def test_how_a_request_ended_for_its_client(fields: dict[str, object], end: End) -> None:
    found = seen("x", record(**fields), output_len=8)
    assert found.end is end
    assert bool(found.detail) == (end is not End.FINISHED)


def ends(**counts: int) -> list[Seen]:
    return [
        Seen(f"{end}-{i}", End(end), 1.0, "") for end, count in counts.items() for i in range(count)
    ]


def test_redis_that_agrees_is_no_problem() -> None:
    states = {"finished-0": "finished", "finished-1": "finished", "failed-0": "failed"}
    assert with_redis(ends(finished=2, failed=1, refused=2), states) == []
    assert with_redis(ends(lost=2), {"lost-0": "cancelled"}) == []


@pytest.mark.parametrize(
    ("seen_ends", "states", "named"),
    [
        (ends(finished=1), {}, "finished-0: its client saw finished, Redis says None"),
        (ends(finished=1), {"finished-0": "failed"}, "saw finished, Redis says failed"),
        (ends(refused=1), {"refused-0": "queued"}, "saw refused, Redis says queued"),
        (ends(failed=1), {"failed-0": "finished"}, "saw failed, Redis says finished"),
        (ends(lost=1), {"lost-0": "decoding"}, "saw lost, Redis says decoding"),
        ([], {"stranger": "finished"}, "stranger: in Redis, and never sent"),
        (ends(finished=1), {"finished-0": "twice: finished and failed"}, "twice"),
    ],
)
def test_redis_that_differs_is_named(
    seen_ends: list[Seen], states: dict[str, str], named: str
) -> None:
    (problem,) = with_redis(seen_ends, states)
    assert named in problem


def test_the_coordinators_counters_must_fit() -> None:
    story = ends(finished=5, refused=3, failed=2, lost=1)
    assert with_coordinator(story, {"finished": 5.0, "failed": 2.0, "cancelled": 1.0}) == []
    assert with_coordinator(story, {"finished": 6.0}) == []  # a lost one may have finished there
    (less,) = with_coordinator(story, {"finished": 4.0})
    assert less == "the coordinator counted 4 finished, its clients saw 5 to 6"
    (more,) = with_coordinator(ends(finished=1), {"finished": 1.0, "cancelled": 2.0})
    assert more == "the coordinator counted 2 cancelled, its clients saw 0"


def test_what_has_not_ended_is_unsettled() -> None:
    assert unsettled({"a": "finished", "b": "handoff", "c": "cancelled"}) == ["b"]
