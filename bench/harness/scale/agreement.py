"""How each request ended, and whether client, coordinator and Redis agree on it. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from bench.harness.client.record import Failure, Record

TERMINAL = frozenset({"finished", "failed", "cancelled"})


class End(StrEnum):
    """The first three are ends that a server may give; the last one must never occur."""

    FINISHED = "finished"
    FAILED = "failed"  # the server said so, by a status or in the stream
    REFUSED = "refused"  # 503 with Retry-After
    LOST = "lost"  # no end, or none that can be believed


# What Redis must say of a request whose client saw this; None: it was never accepted.
_RECORDED: Mapping[End, frozenset[str | None]] = {
    End.FINISHED: frozenset({"finished"}),
    End.FAILED: frozenset({"failed", None}),
    End.REFUSED: frozenset({None}),
    End.LOST: frozenset({"finished", "failed", "cancelled", None}),
}


@dataclass(frozen=True)
class Seen:
    """One request's end, as its client saw it; ``detail`` is empty for a finished one."""

    http_id: str
    end: End
    seconds: float
    detail: str = ""

    @property
    def bad(self) -> bool:
        """A server that is full may refuse; it may not fail or lose what it accepted."""
        return self.end in (End.FAILED, End.LOST)


def seen(http_id: str, record: Record, output_len: int) -> Seen:
    """``output_len`` is what a finished request must have, by the server's own count."""
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
    """Each request of which the client and Redis differ, and each without an end. ``states`` are
    Redis' by X-Request-Id."""
    found = []
    for one in ends:
        state = states.get(one.http_id)
        if state not in _RECORDED[one.end]:
            found.append(f"{one.http_id}: its client saw {one.end.value}, Redis says {state}")
    unknown = states.keys() - {one.http_id for one in ends}
    return found + [f"{http_id}: in Redis, and never sent" for http_id in sorted(unknown)]


def with_coordinator(ends: Sequence[Seen], counted: Mapping[str, float]) -> list[str]:
    """The terminal states in which the coordinator's counters grew by another number.

    A request that failed by a status was perhaps never accepted, and what became of a lost one
    only the coordinator knows: both leave room.
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
    """The ids of requests that Redis does not know to have ended."""
    return [http_id for http_id, state in states.items() if state not in TERMINAL]
