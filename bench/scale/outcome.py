"""How one request ended, as its client saw it. Pure."""

from dataclasses import dataclass
from enum import StrEnum

from bench.client.record import Failure, Record


class End(StrEnum):
    """The first three are ends that a client can be told; the last one is what must never be."""

    FINISHED = "finished"
    FAILED = "failed"  # the server said so, by a status or in the stream
    REFUSED = "refused"  # 503 with Retry-After
    LOST = "lost"  # no end, or none that can be believed


@dataclass(frozen=True)
class Seen:
    """One request's end; ``detail`` is empty for a finished one."""

    http_id: str
    end: End
    seconds: float
    detail: str = ""


def seen(http_id: str, record: Record, output_len: int) -> Seen:
    """``output_len`` is what a finished request must have, by the server's own count."""
    seconds = record.e2e_s
    if record.failure is None:
        told = record.said_tokens
        if record.finish_reason == "length" and told == output_len:
            return Seen(http_id, End.FINISHED, seconds)
        what = f"finish_reason {record.finish_reason!r} with {told} tokens, not {output_len}"
        return Seen(http_id, End.LOST, seconds, what)
    if record.failure is Failure.HTTP:
        if record.status == 503 and record.retry_after:
            return Seen(http_id, End.REFUSED, seconds, record.detail)
        told_how = "" if record.status != 503 else " without Retry-After"
        return Seen(http_id, End.FAILED, seconds, record.detail + told_how)
    if record.failure is Failure.STREAM_ERROR:
        return Seen(http_id, End.FAILED, seconds, record.detail)
    return Seen(http_id, End.LOST, seconds, f"{record.failure.value}: {record.detail}")
