"""All levels, one after the other, and what the three witnesses say about each."""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from secrets import token_hex
from typing import Any

from bench.cannot_measure import CannotMeasure
from bench.client.client import Client
from bench.scale.agreement import unsettled, with_coordinator, with_redis
from bench.scale.coordinator_view import Watch, ended_between, lag_between, scrape
from bench.scale.level import Crowd
from bench.scale.outcome import End, Seen
from bench.scale.plan import ScalePlan
from bench.scale.redis_view import Ledger
from coordinator.file_limit import allow_open_files

_SHOWN = 20
_POLL_S = 0.25


async def run_level(
    client: Client,
    watcher: Client,
    model: str,
    plan: ScalePlan,
    level: int,
    ledger: Ledger,
    told: Callable[[Seen], None] = lambda _: None,
) -> dict[str, Any]:
    """The result of one level; ``passed`` says whether nothing was lost, failed or told twice.
    ``watcher`` looks at the coordinator meanwhile."""
    prefix = f"scale-{token_hex(4)}-{level}-"
    asks = plan.asks(level, model)
    before = await scrape(watcher)
    watch = Watch(watcher)
    watching = asyncio.create_task(watch.run())
    begin = time.perf_counter()
    crowd = Crowd(client, level, prefix, plan.output_len, plan.arrivals_per_s, told)
    ends = await crowd.run(asks)
    wall_s = time.perf_counter() - begin
    watch.stop()
    await watching
    states = await _settled(ledger, prefix, ends, plan.settle_s)
    after = await scrape(watcher)
    by_end = Counter(one.end.value for one in ends)
    problems = [f"{one.http_id}: {one.detail}" for one in ends if one.bad]
    if ledger.offered:
        problems += with_redis(ends, states)
    if before is not None and after is not None:
        problems += with_coordinator(ends, ended_between(before, after))
    elif before is not None:
        problems.append("/metrics was there before the level and not after it")
    result: dict[str, Any] = {
        "level": level,
        "requests": len(asks),
        "ends": {end.value: by_end[end.value] for end in End},
        "most_open": {"client": crowd.most_open, "coordinator": watch.most_open},
        "all_open_after_s": crowd.reached_after_s,
        "wall_s": wall_s,
        "finished_per_s": by_end["finished"] / wall_s,
        "seconds": _percentiles([one.seconds for one in ends if one.end is End.FINISHED]),
        "redis": dict(Counter(states.values())) if ledger.offered else "not offered",
        "coordinator": "not offered",
        "problems": problems[:_SHOWN],
        "num_problems": len(problems),
        "passed": not problems,
    }
    if before is not None and after is not None:
        result["coordinator"] = {
            "ended": ended_between(before, after),
            "event_loop_lag_s_at_most": lag_between(before, after),
            "memory_mib": {
                "before": before.memory_mib,
                "most": watch.most_memory_mib,
                "after": after.memory_mib,
            },
            "most_open_files": watch.most_open_files,
            "slowest_scrape_s": watch.slowest_scrape_s,
            "scrapes": len(watch.scrapes),
            "scrapes_unanswered": watch.unanswered,
        }
    return result


async def _settled(
    ledger: Ledger, prefix: str, ends: list[Seen], settle_s: float
) -> Mapping[str, str]:
    """Redis' states, once every accepted request has ended there, or as they are at the deadline:
    the record is written behind, and a client that was lost may leave work that takes a while."""
    if not ledger.offered:
        return {}
    deadline = time.monotonic() + settle_s
    wanted = sum(one.end is End.FINISHED for one in ends)
    while True:
        states = await asyncio.to_thread(ledger.states, prefix)
        settled = len(states) >= wanted and not unsettled(states)
        if settled or time.monotonic() >= deadline:
            return states
        await asyncio.sleep(_POLL_S)  # Redis can only be asked


def require_files(level: int) -> None:
    """Have this process allowed a socket for each request; raises CannotMeasure."""
    try:
        allow_open_files("levels", level)
    except ValueError as error:
        raise CannotMeasure(str(error)) from None


def _percentiles(seconds: list[float]) -> dict[str, float]:
    """By the nearest rank."""
    ranked = sorted(seconds)
    if not ranked:
        return {}
    ranks = {f"p{p}": max(0, math.ceil(p / 100 * len(ranked)) - 1) for p in (50, 90, 99)}
    return {name: ranked[rank] for name, rank in ranks.items()} | {"most": ranked[-1]}
