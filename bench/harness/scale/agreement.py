"""Compares how each request ended by its client, the coordinator and Redis. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from bench.harness.client.record import Failure, Record

TERMINAL = frozenset({"finished", "failed", "cancelled"})


class End(StrEnum):
    """How a request ended for its client. A server may cause the first three, never the last."""

    FINISHED = "finished"
    FAILED = "failed"  # the server said so, by a status or in the stream
    REFUSED = "refused"  # 503 with Retry-After
    LOST = "lost"  # no end, or none that can be believed


# States that Redis may have for a request whose client saw this end; None: never accepted.
_RECORDED: Mapping[End, frozenset[str | None]] = {
    End.FINISHED: frozenset({"finished"}),
    End.FAILED: frozenset({"failed", None}),
    End.REFUSED: frozenset({None}),
    End.LOST: frozenset({"finished", "failed", "cancelled", None}),
}


@dataclass(frozen=True)
class Seen:
    """The end of one request as its client saw it; ``detail`` is empty if it finished."""

    http_id: str
    end: End
    seconds: float
    detail: str = ""

    @property
    def bad(self) -> bool:
        """True if the server failed or lost a request. A full server may refuse requests."""
        return self.end in (End.FAILED, End.LOST)


def seen(http_id: str, record: Record, output_len: int) -> Seen:
    """Judge a record. A finished request has ``output_len`` tokens by the server's own count."""
    if record.failure is None:
        num_tokens, reason = record.said_tokens, record.finish_reason
        if reason == "length" and num_tokens == output_len:
            return Seen(http_id, End.FINISHED, record.e2e_s)
        what = f"finish_reason {reason!r} with {num_tokens} tokens, not {output_len}"
        return Seen(http_id, End.LOST, record.e2e_s, what)
    end = End.FAILED if record.failure in (Failure.HTTP, Failure.STREAM_ERROR) else End.LOST
    why = f"{record.failure.value}: {record.detail}"
    if record.failure is Failure.HTTP and record.status == 503:
        if record.retry_after:
            end = End.REFUSED
        else:
            why += " (without Retry-After)"
    return Seen(http_id, end, record.e2e_s, why)


def with_redis(ends: Sequence[Seen], states: Mapping[str, str]) -> list[str]:
    """The requests whose ends differ between client and Redis, and those that were never sent.
    ``states``: Redis' states by X-Request-Id."""
    found = []
    for one in ends:
        state = states.get(one.http_id)
        if state not in _RECORDED[one.end]:
            found.append(f"{one.http_id}: its client saw {one.end.value}, Redis says {state}")
    unknown = states.keys() - {one.http_id for one in ends}
    return found + [f"{http_id}: in Redis, and never sent" for http_id in sorted(unknown)]


def with_coordinator(ends: Sequence[Seen], counted: Mapping[str, float]) -> list[str]:
    """The terminal states whose counters at the coordinator grew by a number that cannot be right.

    A request that failed by a status may never have been accepted, and only the coordinator knows
    the end of a lost request: both widen the range that is allowed.
    """
    by_end = Counter(one.end for one in ends)
    lost, failed = by_end[End.LOST], by_end[End.FAILED]
    allowed = {
        "finished": (by_end[End.FINISHED], by_end[End.FINISHED] + lost),
        "failed": (0, failed + lost),
        "cancelled": (0, lost),
    }
    found = []
    for state, (least, most) in allowed.items():
        got = counted.get(state, 0.0)
        if not least <= got <= most:
            wanted = f"{least}" if least == most else f"{least} to {most}"
            found.append(f"the coordinator counted {got:.0f} {state}, its clients saw {wanted}")
    return found


def unsettled(states: Mapping[str, str]) -> list[str]:
    """The ids of requests that have no terminal state in Redis."""
    return [http_id for http_id, state in states.items() if state not in TERMINAL]
