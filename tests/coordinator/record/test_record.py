"""The order of a request's records: whatever arrives, and however often, the highest holds."""

from functools import reduce
from itertools import pairwise
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from coordinator.record.record import RequestRecord, State
from coordinator.record.write_buffer import WriteBuffer
from tests.coordinator.histories import advance, again, latest
from transport.wire.errors import MalformedMessage

STATES: tuple[State, ...] = get_args(State)
TERMINAL = {"finished", "failed", "cancelled"}

histories = st.lists(st.tuples(st.sampled_from([*STATES, "again"]), st.integers(0, 5)), max_size=15)


def new(request_id: str = "r1", **fields: Any) -> RequestRecord:
    return RequestRecord(request_id=request_id, coordinator="c1", **fields)


def history(steps: list[tuple[str, int]]) -> list[RequestRecord]:
    """A request's records in the order in which its coordinator made them."""
    records = [new()]
    for step, num_output in steps:
        record = records[-1]
        if step == "again":
            records.append(again(record, at=1.0))
        else:
            records.append(advance(record, step, num_output=num_output))  # type: ignore[arg-type]
    return records


@given(histories, st.randoms())
def test_any_order_and_doubling_ends_in_the_newest(steps: Any, random: Any) -> None:
    records = history(steps)
    arriving = records * 2
    random.shuffle(arriving)
    assert reduce(latest, arriving) == records[-1]
    outbox = WriteBuffer(max_ended=10, retain_s=10)
    for record in arriving:
        outbox.put(record)
    assert outbox.take(10) == [records[-1]]


@given(histories)
def test_a_history_only_rises_and_ends_once(steps: Any) -> None:
    records = history(steps)
    for before, after in pairwise(records):
        assert after is before or after.order > before.order
        assert not before.ended or after is before


@given(
    st.sampled_from([s for s in STATES if s not in TERMINAL]),
    st.sampled_from(STATES),
    st.tuples(st.integers(1, 10**6), st.integers(1, 10**6)).filter(lambda pair: pair[0] < pair[1]),
    st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)),
)
def test_a_stale_attempt_never_wins(stale: State, state: State, attempts: Any, revs: Any) -> None:
    old = new(state=stale, attempt=attempts[0], revision=revs[0])
    current = new(state=state, attempt=attempts[1], revision=revs[1])
    assert latest(current, old) is current
    assert latest(old, current) is current
    assert advance(current, stale, attempt=old.attempt) is current


def test_advancing_twice_or_back_changes_nothing() -> None:
    placed = advance(new(), "prefilling", prefill_worker="p1", placed_at=2.0)
    assert placed.revision == 1
    assert advance(placed, "prefilling", prefill_worker="p1") is placed
    assert advance(placed, "queued") is placed
    landed = advance(advance(placed, "handoff"), "handoff", transferred_at=3.0)
    assert landed.order > advance(placed, "handoff").order
    done = advance(landed, "finished", finish_reason="stop")
    assert done.ended
    assert advance(done, "failed") is done


def test_the_owners_verdict_beats_a_strangers_guess() -> None:
    """Another coordinator fails what it takes for lost and keeps the revision (scripts.py)."""
    decoding = new(state="decoding", revision=7)
    guess = structs.replace(decoding, state="failed", failure_code="coordinator_lost")
    for end in ("finished", "failed", "cancelled"):
        assert latest(guess, advance(decoding, end)).failure_code == ""
    assert latest(guess, advance(decoding, "decoding", num_output=9)) is guess


@given(
    st.builds(
        RequestRecord,
        request_id=st.text(min_size=1),
        coordinator=st.text(min_size=1),
        http_id=st.text(),
        state=st.sampled_from(STATES),
        failure_message=st.text(),
        received_at=st.none() | st.floats(min_value=0.0, max_value=1e10),
        num_output=st.integers(0, 10**9),
    )
)
def test_fields_there_and_back(record: RequestRecord) -> None:
    fields = record.to_fields()
    assert all(isinstance(text, str) for text in fields.values())
    assert RequestRecord.from_fields(fields) == record


def test_fields_of_text_that_is_not_utf8() -> None:
    assert new(failure_message="\udc80").to_fields()["failure_message"] == "\\udc80"


@pytest.mark.parametrize("fields", [{}, {"request_id": "r", "coordinator": "c", "state": "lost"}])
def test_unreadable_fields(fields: dict[str, str]) -> None:
    with pytest.raises(MalformedMessage, match="unreadable"):
        RequestRecord.from_fields(fields)


def test_so_many_ended_ones_are_kept_and_all_that_are_open() -> None:
    outbox = WriteBuffer(max_ended=2, retain_s=10)
    live = [new(f"live{n}") for n in range(9)]
    for record in live:
        outbox.put(record)
    outbox.put(new("a", state="finished"))
    for record in outbox.take(10):
        outbox.settle(record, now=0.0)
    outbox.put(new("b", state="finished"))
    outbox.put(new("c", state="finished"))
    assert (len(outbox), outbox.dropped) == (11, 0), "what was confirmed is no loss"
    assert outbox.get("a") is None
    outbox.put(new("d", state="finished"))
    assert (len(outbox), outbox.dropped) == (11, 1)
    assert [outbox.get(record.request_id) for record in live] == live
    assert [r.request_id for r in outbox.take(10)] == ["c", "d"]


@pytest.mark.parametrize("written", [True, False])
def test_a_record_dropped_while_it_is_written_is_lost_only_if_that_fails(written: bool) -> None:
    outbox = WriteBuffer(max_ended=1, retain_s=10)
    outbox.put(new("a", state="finished"))
    (taken,) = outbox.take(10)
    outbox.put(new("b", state="finished"))
    assert outbox.dropped == 0
    if written:
        outbox.settle(taken, now=0.0)
    else:
        outbox.give_back([taken])
    assert outbox.dropped == (0 if written else 1)
    assert [r.request_id for r in outbox.take(10)] == ["b"]


def test_what_failed_is_written_again_unless_newer_came() -> None:
    outbox = WriteBuffer(max_ended=9, retain_s=10)
    first, other = new("x"), new("y")
    outbox.put(first)
    outbox.put(other)
    taken = outbox.take(9)
    newer = advance(first, "failed")
    outbox.put(newer)
    outbox.give_back(taken)
    assert outbox.take(9) == [newer, other]
    outbox.settle(newer, now=0.0)
    assert outbox.num_dirty == 0
    outbox.rewrite_all()
    assert {r.request_id for r in outbox.take(9)} == {"x", "y"}
    outbox.expire(now=9.0)
    assert outbox.get("x") is newer
    outbox.expire(now=10.0)
    assert outbox.get("x") is None
    assert len(outbox) == 1
