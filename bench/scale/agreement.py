"""Do client, coordinator and Redis tell the same story? Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence

from bench.scale.outcome import End, Seen

TERMINAL = frozenset({"finished", "failed", "cancelled"})
# What Redis must say of a request whose client saw this; None: it was never accepted.
_RECORDED: Mapping[End, frozenset[str | None]] = {
    End.FINISHED: frozenset({"finished"}),
    End.FAILED: frozenset({"failed", None}),
    End.REFUSED: frozenset({None}),
    End.LOST: frozenset({"finished", "failed", "cancelled", None}),
}


def with_redis(ends: Sequence[Seen], states: Mapping[str, str]) -> list[str]:
    """Each request that the client and Redis tell differently, and each without an end.

    ``states`` are Redis' by X-Request-Id.
    """
    found = []
    for one in ends:
        state = states.get(one.http_id)
        if state not in _RECORDED[one.end]:
            found.append(f"{one.http_id}: its client saw {one.end.value}, Redis says {state}")
    unknown = states.keys() - {one.http_id for one in ends}
    found += [f"{http_id}: in Redis, and nobody asked" for http_id in sorted(unknown)]
    return found


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
