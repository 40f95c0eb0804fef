"""The two ways to put load on a server.

Closed loop: a fixed number of requests is always under way; the next is sent when one has ended.
Open loop: each request is sent at its own time, whatever became of earlier ones, and its latency
counts from that time. So neither a slow server nor a late client reduces the load that it gets,
unless a limit of requests under way is set: then those that come at the limit are left out.
"""

import asyncio
import math
from collections.abc import Callable, Iterable, Sequence, Sized
from time import perf_counter

from bench.harness.client.asking import Ask
from bench.harness.client.client import Client
from bench.harness.client.exchange import Exchange
from bench.harness.client.reading import read
from bench.harness.client.record import Failure
from bench.harness.run_control import RunControl

_HEAD_START_S = 0.05
OnEnd = Callable[[bool], None]
"""Called when a request ends, with True if it failed."""


def ignore(failed: bool) -> None:
    """Do nothing: the loop is not shown while it runs."""


async def closed_loop(
    client: Client,
    asks: Iterable[Ask],
    concurrency: int,
    control: RunControl,
    on_end: OnEnd = ignore,
    arrivals_per_s: float = math.inf,
) -> list[Exchange | None]:
    """Keep ``concurrency`` requests under way; the first ones are sent at ``arrivals_per_s``.
    Returns the exchange of each ask, in order; None if the run stopped before it was sent."""
    found: list[Exchange | None] = []
    waiting = iter(asks)
    if isinstance(asks, Sized):
        concurrency = min(concurrency, len(asks))
    await client.open(concurrency)
    begin_s = perf_counter()

    async def worker(number: int) -> None:
        await control.stopped_within(begin_s + number / arrivals_per_s - perf_counter())
        while control.stopped is None and (ask := next(waiting, None)) is not None:
            index = len(found)
            found.append(None)
            found[index] = exchange = await client.exchange(ask)
            on_end(control.saw(exchange))

    async with asyncio.TaskGroup() as tasks:
        for number in range(concurrency):
            tasks.create_task(worker(number))
    return found + [None for _ in waiting]


async def warm_up(
    client: Client,
    asks: Sequence[Ask],
    control: RunControl,
    on_end: OnEnd = ignore,
    *,
    at_once: int | None = None,
) -> None:
    """Send requests that are not counted, ``at_once`` or all at once. Stops the run if every one
    fails."""
    exchanges = await closed_loop(client, asks, at_once or max(1, len(asks)), control, on_end)
    records = [read(exchange) for exchange in exchanges if exchange is not None]
    if records and all(record.failure not in (None, Failure.MISCOUNT) for record in records):
        control.stop(f"every warm-up failed: {records[0].failure}: {records[0].detail}")


async def open_loop(
    client: Client,
    asks: Sequence[Ask],
    offsets_s: Sequence[float],
    control: RunControl,
    on_end: OnEnd = ignore,
    max_under_way: float = math.inf,
) -> tuple[float, list[Exchange | None]]:
    """Send each ask at its offset from the start (ascending), whatever the others do, except those
    that are due while ``max_under_way`` others are under way. Returns the start (perf_counter) and
    the exchanges; None for these, and if the run stopped before one was due."""
    found: list[Exchange | None] = [None] * len(asks)
    begin_s = perf_counter() + _HEAD_START_S
    under_way = set[int]()

    async def one(index: int, due_at_s: float) -> None:
        found[index] = exchange = await client.exchange(asks[index], due_at_s=due_at_s)
        under_way.remove(index)
        on_end(control.saw(exchange))

    async with asyncio.TaskGroup() as tasks:
        for index, offset_s in enumerate(offsets_s):
            due_at_s = begin_s + offset_s
            if await control.stopped_within(due_at_s - perf_counter()):
                break
            if len(under_way) >= max_under_way:
                continue
            under_way.add(index)
            # A timer may fire a fraction early: the request is due when it is sent, then.
            tasks.create_task(one(index, min(due_at_s, perf_counter())))
    return begin_s, found
