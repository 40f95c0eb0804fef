"""Thousands of requests open at once, level by level: client, coordinator and Redis must agree on
the end of each."""

import asyncio
import math
import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Annotated, Any

from typer import Option

from bench.harness.cannot_measure import CannotMeasure
from bench.harness.client.exchange import Exchange
from bench.harness.client.reading import read
from bench.harness.conduct import Session
from bench.harness.loops import closed_loop
from bench.harness.options import Target
from bench.harness.scale.agreement import End, Seen, seen, unsettled, with_coordinator, with_redis
from bench.harness.scale.plan import ScalePlan
from bench.harness.scale.server_side import Ledger, ended_between, lag_between, scrape, watch
from bench.measures import percentiles
from coordinator.http.server.open_files import allow_open_files
from coordinator.record.settings import PASSWORD
from transport.wire.secret_setting import secret_setting

_SHOWN = 20
_POLL_S = 0.25


@dataclass(frozen=True)
class ScaleTarget(Target):
    redis_url: Annotated[
        str | None,
        Option(envvar="BATON_REDIS_URL", help="The coordinator's Redis, to compare with."),
    ] = None


@dataclass
class ScaleReport:
    """The result of all levels; ``levels``: the results of ``run_level``."""

    levels: list[dict[str, Any]] = field(default_factory=list)

    def problems(self) -> list[str]:
        return [f"{one['level']}: {what}" for one in self.levels for what in one["problems"]]

    def headline(self) -> dict[str, Any]:
        return {
            "levels": [one["level"] for one in self.levels],
            "most_open": max((one["most_open"]["client"] for one in self.levels), default=0),
            **{
                end: sum(one["ends"][end] for one in self.levels)
                for end in ("finished", "refused", "failed", "lost")
            },
            "problems": sum(one["num_problems"] for one in self.levels),
        }

    def json(self) -> dict[str, Any]:
        return {**self.headline(), "by_level": self.levels}


async def scale(plan: ScalePlan, target: ScaleTarget, session: Session) -> ScaleReport:
    """Client, coordinator (its /metrics) and Redis must agree on how each request ended.

    Exit status: 0, 1 when a request was lost or failed or two accounts differ, 2 when nothing
    could be measured, 130 interrupted. Refused requests (503 with Retry-After) are no failure.
    """
    try:
        allow_open_files("levels", max(plan.levels))
    except ValueError as error:
        raise CannotMeasure(str(error)) from None
    ledger = Ledger(target.redis_url, secret_setting(os.environ, PASSWORD))
    report = ScaleReport()
    for level in plan.levels:
        if session.control.stopped is None:
            report.levels.append(await run_level(session, plan, level, ledger))
            session.progress.say(line(report.levels[-1]))
    return report


async def run_level(
    session: Session, plan: ScalePlan, level: int, ledger: Ledger
) -> dict[str, Any]:
    """Run one level. ``passed`` in its result: no request was lost, failed or counted
    differently."""
    prefix = f"scale-{token_hex(4)}-{level}-"
    asks = plan.asks(level, session.server.model, prefix)
    session.progress.begin(f"{level} at once", len(asks))
    before = await scrape(session.aside)
    over = asyncio.Event()
    watching = asyncio.create_task(watch(session.aside, over))
    begin = time.perf_counter()
    exchanges = await closed_loop(
        session.client, asks, level, session.control, session.progress.step, plan.arrivals_per_s
    )
    wall_s = time.perf_counter() - begin
    over.set()
    looks = await watching
    sent = [(i, exchange) for i, exchange in enumerate(exchanges) if exchange is not None]
    ends = [seen(f"{prefix}{i}", read(exchange), plan.output_len) for i, exchange in sent]
    states = await _settled(ledger, prefix, ends, plan.settle_s)
    after = await scrape(session.aside)
    by_end = Counter(one.end.value for one in ends)
    problems = [f"{one.http_id}: {one.detail}" for one in ends if one.bad]
    if ledger.offered:
        problems += with_redis(ends, states)
    scrapes = [look for look in looks if look is not None]
    coordinator: dict[str, Any] | str = "not offered"
    if before is not None and after is None:
        problems.append("/metrics was there before the level and not after it")
    if before is not None and after is not None:
        problems += with_coordinator(ends, ended_between(before, after))
        coordinator = {
            "ended": ended_between(before, after),
            "event_loop_lag_s_at_most": lag_between(before, after),
            "memory_mib": {
                "before": before.memory_mib,
                "most": _most([look.memory_mib for look in scrapes]),
                "after": after.memory_mib,
            },
            "most_open_files": _most([look.open_files for look in scrapes]),
            "slowest_scrape_s": _most([look.took_s for look in scrapes]),
            "scrapes": len(scrapes),
            "scrapes_unanswered": len(looks) - len(scrapes),
        }
    most_open, reached_at_s = crowded([exchange for _, exchange in sent])
    seen_open = round(max((look.num_open for look in scrapes), default=0.0))
    return {
        "level": level,
        "requests": len(asks),
        "ends": {end.value: by_end[end.value] for end in End},
        "most_open": {"client": most_open, "coordinator": seen_open},
        "all_open_after_s": reached_at_s - begin,
        "wall_s": wall_s,
        "finished_per_s": by_end["finished"] / wall_s,
        "seconds": _spread([one.seconds for one in ends if one.end is End.FINISHED]),
        "redis": dict(Counter(states.values())) if ledger.offered else "not offered",
        "coordinator": coordinator,
        "problems": problems[:_SHOWN],
        "num_problems": len(problems),
        "passed": not problems,
    }


def crowded(exchanges: Sequence[Exchange]) -> tuple[int, float]:
    """The most requests open at once, and when (perf_counter) that number was first reached."""
    begins = [(exchange.due_at_s, 1) for exchange in exchanges]
    changes = begins + [(exchange.done_at_s or math.inf, -1) for exchange in exchanges]
    num_open = most = 0
    reached_at_s = math.nan
    for at_s, change in sorted(changes):
        num_open += change
        if num_open > most:
            most, reached_at_s = num_open, at_s
    return most, reached_at_s


async def _settled(
    ledger: Ledger, prefix: str, ends: list[Seen], settle_s: float
) -> dict[str, str]:
    """The states in Redis once every accepted request has ended there, or at the deadline. Records
    are written with a delay, and a lost client's request may still run for a while."""
    deadline = time.monotonic() + settle_s
    wanted = sum(one.end is End.FINISHED for one in ends) if ledger.offered else 0
    while True:
        states = await asyncio.to_thread(ledger.states, prefix)
        settled = len(states) >= wanted and not unsettled(states)
        if settled or time.monotonic() >= deadline:
            return states
        await asyncio.sleep(_POLL_S)  # Redis can only be asked


def line(level: dict[str, Any]) -> str:
    """The result of one level as a line of text."""
    ends = ", ".join(f"{count} {end}" for end, count in level["ends"].items() if count)
    text = f"{level['level']} at once: {level['most_open']['client']} open at most, {ends}"
    text += f" in {level['wall_s']:.1f} s"
    if isinstance(level["coordinator"], dict):
        lag, memory = level["coordinator"]["event_loop_lag_s_at_most"], level["coordinator"]
        text += f"; event loop late by at most {lag['p99'] * 1000:g} ms in 99 of 100 samples"
        text += f", {lag['most'] * 1000:g} ms in all; {memory['memory_mib']['most']:.0f} MiB"
    return text + ("" if level["passed"] else f"; {level['num_problems']} PROBLEMS")


def _most(values: Sequence[float]) -> float:
    return max(values, default=math.nan)


def _spread(seconds: Sequence[float]) -> dict[str, float]:
    return percentiles(seconds, (0.5, 0.9, 0.99)) | {"most": max(seconds)} if seconds else {}
