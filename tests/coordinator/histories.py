"""How a request's records follow each other, as its coordinator makes them."""

from typing import Any

from msgspec import structs

from coordinator.record.record import RequestRecord, State

KEPT = frozenset({"request_id", "coordinator", "http_id", "num_prompt", "num_output", "received_at",
                  "first_token_at", "bytes_moved", "num_reused", "reused"})  # fmt: skip


def advance(record: RequestRecord, state: State, /, **changes: Any) -> RequestRecord:
    """The record one transition later; this very one when it has ended, when nothing would
    change, and when the transition would lead back."""
    after = structs.replace(record, state=state, **changes)
    if record.ended or after == record:
        return record
    after = structs.replace(after, revision=record.revision + 1)
    return latest(record, after)


def again(record: RequestRecord, *, at: float) -> RequestRecord:
    """Queued again at ``at``: only what is the request's own, and not an attempt's, stays."""
    if record.ended:
        return record
    kept = {name: getattr(record, name) for name in KEPT}
    return RequestRecord(
        **kept, state="queued", attempt=record.attempt + 1, revision=record.revision + 1,
        queued_at=at,
    )  # fmt: skip


def latest(one: RequestRecord, other: RequestRecord) -> RequestRecord:
    """The one of a request's two records that holds."""
    return other if other.order > one.order else one
