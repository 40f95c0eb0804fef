"""What Redis says became of requests, compared with what their clients saw."""

from collections.abc import Sequence

import redis

from coordinator.record import keys
from tests.e2e.streams import Stream
from tests.e2e.waiting import eventually

Records = dict[str, dict[str, str]]

TERMINAL = {"finished", "failed", "cancelled"}


def records(server: "redis.Redis[str]") -> Records:
    """Every request that Redis knows, by its client's X-Request-Id."""
    names = server.scan_iter(keys.REQUEST_PREFIX + "*", count=1000)
    return by_client([server.hgetall(name) for name in names])


def by_client(found: Sequence[dict[str, str]]) -> Records:
    """Records by their client's X-Request-Id; no client has two."""
    records = {record["http_id"]: record for record in found}
    assert len(records) == len(found), "a client's request was accepted twice"
    return records


async def settled(
    server: "redis.Redis[str]", expected: dict[str, str], deadline_s: float = 10.0
) -> Records:
    """Wait until each of these clients' requests is in the state expected of it.

    Then no coordinator has anything open, and every request Redis knows has ended.
    """

    async def check() -> Records:
        known = records(server)
        states = {http_id: record["state"] for http_id, record in known.items()}
        wrong = {k: (states.get(k), v) for k, v in expected.items() if states.get(k) != v}
        assert not wrong, f"(recorded, expected): {wrong}"
        assert set(states.values()) <= TERMINAL, states
        assert not list(server.scan_iter(keys.open_requests("*"))), (
            "a request is still listed as open"
        )
        return known

    return await eventually(check, "every record ended as its client saw", deadline_s)


def outcomes(streams: Sequence[Stream]) -> dict[str, str]:
    return {stream.http_id: stream.outcome for stream in streams}
