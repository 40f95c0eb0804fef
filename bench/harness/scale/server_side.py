"""The ends of requests by a coordinator's /metrics and by the records in Redis."""

import asyncio
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass

import redis

from bench.harness.cannot_measure import CannotMeasure
from bench.harness.client.client import Client
from bench.prometheus import series, total
from coordinator.record import keys
from coordinator.record.settings import safe_url

SCRAPE_S = 1.0
_LAG = "baton_event_loop_lag_seconds_bucket"
_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Scrape:
    """One reading of /metrics; counts are since the coordinator's start. ``took_s``: how long the
    answer took. ``lag``: number of samples late by at most each number of seconds."""

    took_s: float
    ended: Mapping[str, float]  # requests by terminal state
    lag: Mapping[float, float]
    num_open: float
    memory_mib: float
    open_files: float


async def scrape(client: Client) -> Scrape | None:
    """Read /metrics; None if there is no answer, or it has no metrics of Baton."""
    begin = time.perf_counter()
    exchange = await client.get("/metrics")
    if exchange.failure is not None or exchange.status != 200:
        return None
    text = exchange.body.decode(errors="replace")
    running = total(text, ["baton_requests_running"])
    if running is None:
        return None
    ended: dict[str, float] = {}
    for labels, value in series(text, "baton_requests_total"):
        ended[labels["state"]] = ended.get(labels["state"], 0.0) + value
    return Scrape(
        time.perf_counter() - begin,
        ended,
        {float(labels["le"]): value for labels, value in series(text, _LAG)},
        running + (total(text, ["baton_requests_queued"]) or 0.0),
        (total(text, ["process_resident_memory_bytes"]) or math.nan) / 2**20,
        total(text, ["process_open_fds"]) or math.nan,
    )


async def watch(client: Client, over: asyncio.Event) -> list[Scrape | None]:
    """A look every ``SCRAPE_S`` until ``over``; None for one that got no answer."""
    found = []
    while not over.is_set():
        found.append(await scrape(client))
        try:
            async with asyncio.timeout(SCRAPE_S):
                await over.wait()
        except TimeoutError:
            continue
    return found


def ended_between(before: Scrape, after: Scrape) -> dict[str, float]:
    """Number of requests that ended between two readings, by terminal state."""
    return {s: n - before.ended.get(s, 0.0) for s, n in after.ended.items()}


def lag_between(before: Scrape, after: Scrape) -> dict[str, float]:
    """Upper bounds of the event loop's lag between two readings, in seconds: p50, p99, maximum.

    A histogram has bounds, not values; ``inf`` is above its last bound.
    """
    counts = {bound: n - before.lag.get(bound, 0.0) for bound, n in sorted(after.lag.items())}
    samples = max(counts.values(), default=0.0)

    def bound(share: float) -> float:
        return next((b for b, n in counts.items() if n >= share * samples), math.inf)

    return {"p50": bound(0.5), "p99": bound(0.99), "most": bound(1.0), "samples": samples}


class Ledger:
    """The records that coordinators write into Redis (coordinator/record/keys.py); ``url`` None:
    no Redis, no records. Calls block. Raises CannotMeasure if Redis does not answer."""

    def __init__(self, url: str | None, password: str = "") -> None:
        self._url = url
        self.offered = url is not None
        if url is None:
            return
        try:
            self._redis = redis.Redis.from_url(
                url, password=password or None, decode_responses=True, socket_timeout=_TIMEOUT_S
            )
            self._redis.ping()
        except (redis.RedisError, ValueError, OSError) as error:
            raise self._unusable(error) from None

    def states(self, prefix: str) -> dict[str, str]:
        """States by X-Request-Id of the requests whose id begins with ``prefix``. Two requests with
        the same id and different states are "twice: …"."""
        found: dict[str, str] = {}
        if not self.offered:
            return found
        try:
            names = list(
                dict.fromkeys(self._redis.scan_iter(keys.REQUEST_PREFIX + "*", count=1000))
            )
            with self._redis.pipeline(transaction=False) as pipeline:
                for name in names:
                    pipeline.hmget(name, "http_id", "state")
                records = pipeline.execute()
        except redis.RedisError as error:
            raise self._unusable(error) from None
        for http_id, state in records:
            if http_id and http_id.startswith(prefix):
                if http_id in found and found[http_id] != state:
                    state = f"twice: {found[http_id]} and {state}"
                found[http_id] = state or "none"
        return found

    def _unusable(self, error: Exception) -> CannotMeasure:
        return CannotMeasure(f"redis_url: {safe_url(self._url or '')}: {error}")
