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

    @property
    def bad(self) -> bool:
        """A server that is full may refuse; it may not fail or lose what it took."""
        return self.end in (End.FAILED, End.LOST)


def seen(http_id: str, record: Record, output_len: int) -> Seen:
    """``output_len`` is what a finished request must have, by the server's own count."""
    seconds = record.e2e_s
    if record.failure is None:
        num_tokens = record.said_tokens
        if record.finish_reason == "length" and num_tokens == output_len:
            return Seen(http_id, End.FINISHED, seconds)
        what = f"finish_reason {record.finish_reason!r} with {num_tokens} tokens, not {output_len}"
        return Seen(http_id, End.LOST, seconds, what)
    why = f"{record.failure.value}: {record.detail}"
    if record.failure is Failure.HTTP and record.status == 503:
        if record.retry_after:
            return Seen(http_id, End.REFUSED, seconds, why)
        why += " (without Retry-After)"
    told = record.failure in (Failure.HTTP, Failure.STREAM_ERROR)
    return Seen(http_id, End.FAILED if told else End.LOST, seconds, why)
