"""What Redis says became of requests, compared with what their clients saw."""

from collections.abc import Sequence
from typing import Any

import redis

from coordinator import keys
from tests.e2e.streams import Stream
from tests.e2e.waiting import eventually

Records = dict[str, dict[str, Any]]

TERMINAL = {"finished", "failed", "cancelled"}


def request_ids(server: "redis.Redis[str]") -> set[str]:
    found = server.scan_iter(keys.REQUEST_PREFIX + "*", count=1000)
    return {key.removeprefix(keys.REQUEST_PREFIX) for key in found}


async def settled(
    server: "redis.Redis[str]", expected: dict[str, str], deadline_s: float = 10.0
) -> Records:
    """Wait until each of these requests is in the state expected of it; returns their records.

    Then no coordinator has anything open, and every request Redis knows has ended.
    """

    async def check() -> Records:
        records = {key: server.hgetall(keys.request(key)) for key in request_ids(server)}
        states = {key: record["state"] for key, record in records.items()}
        wrong = {k: (states.get(k), v) for k, v in expected.items() if states.get(k) != v}
        assert not wrong, f"(recorded, expected): {wrong}"
        assert set(states.values()) <= TERMINAL, states
        assert not list(server.scan_iter("baton:open:*")), "a request is still listed as open"
        return records

    return await eventually(check, "every record ended as its client saw", deadline_s)


def outcomes(streams: Sequence[Stream]) -> dict[str, str]:
    return {stream.request_id: stream.outcome for stream in streams}
