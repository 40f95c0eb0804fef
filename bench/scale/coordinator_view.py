"""What a coordinator's /metrics say: counters before and after, gauges while it works."""

import asyncio
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from bench.client.client import Client
from bench.prometheus import series, total

SCRAPE_S = 1.0
_LAG = "baton_event_loop_lag_seconds_bucket"


@dataclass(frozen=True)
class Scrape:
    """One look. ``took_s`` is how long the coordinator needed to answer it."""

    took_s: float
    ended: Mapping[str, float]  # requests by terminal state, since the start
    lag: Mapping[float, float]  # samples at most so many seconds late, since the start
    num_open: float
    memory_mib: float
    open_files: float


async def scrape(client: Client) -> Scrape | None:
    """None where nothing of Baton's is exposed, or no answer came."""
    begin = time.perf_counter()
    exchange = await client.get("/metrics")
    if exchange.failure is not None or exchange.status != 200:
        return None
    text = exchange.body.decode(errors="replace")
    if total(text, ["baton_requests_running"]) is None:
        return None
    ended: dict[str, float] = {}
    for labels, value in series(text, "baton_requests_total"):
        state = labels.get("state", "")
        ended[state] = ended.get(state, 0.0) + value
    return Scrape(
        time.perf_counter() - begin,
        ended,
        {float(labels["le"]): value for labels, value in series(text, _LAG)},
        (total(text, ["baton_requests_running"]) or 0.0)
        + (total(text, ["baton_requests_queued"]) or 0.0),
        (total(text, ["process_resident_memory_bytes"]) or math.nan) / 2**20,
        total(text, ["process_open_fds"]) or math.nan,
    )


@dataclass
class Watch:
    """Looks every ``SCRAPE_S`` until stopped; a look that gets no answer is counted."""

    client: Client
    scrapes: list[Scrape] = field(default_factory=list)
    unanswered: int = 0
    _stop: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        while not self._stop.is_set():
            found = await scrape(self.client)
            if found is None:
                self.unanswered += 1
            else:
                self.scrapes.append(found)
            try:
                async with asyncio.timeout(SCRAPE_S):
                    await self._stop.wait()
            except TimeoutError:
                continue

    def stop(self) -> None:
        self._stop.set()

    @property
    def most_open(self) -> int:
        return round(max((one.num_open for one in self.scrapes), default=0.0))

    @property
    def most_memory_mib(self) -> float:
        return max((one.memory_mib for one in self.scrapes), default=math.nan)

    @property
    def most_open_files(self) -> float:
        return max((one.open_files for one in self.scrapes), default=math.nan)

    @property
    def slowest_scrape_s(self) -> float:
        return max((one.took_s for one in self.scrapes), default=math.nan)


def ended_between(before: Scrape, after: Scrape) -> dict[str, float]:
    """Requests by terminal state that ended between the two."""
    return {s: n - before.ended.get(s, 0.0) for s, n in after.ended.items()}


def lag_between(before: Scrape, after: Scrape) -> dict[str, float]:
    """Upper bounds in seconds of the event loop's lag between the two: p50, p99 and the most.

    A histogram knows bounds, not values; ``inf`` is above its last one.
    """
    counts = {bound: n - before.lag.get(bound, 0.0) for bound, n in sorted(after.lag.items())}
    samples = max(counts.values(), default=0.0)

    def bound(share: float) -> float:
        return next((b for b, n in counts.items() if n >= share * samples), math.inf)

    return {"p50": bound(0.5), "p99": bound(0.99), "most": bound(1.0), "samples": samples}
