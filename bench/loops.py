"""The two ways to put load on a server.

Closed loop: so many requests are always under way; the next is sent when one has ended. Open loop:
each request is sent at its own time, whatever became of those before it, and its latency counts
from that time, so that neither a slow server nor a late client thins out the load it is judged by.
"""

import asyncio
from collections.abc import Callable, Sequence
from time import perf_counter

from bench.client.asking import Ask
from bench.client.client import Client
from bench.client.exchange import Exchange
from bench.run_control import RunControl

_HEAD_START_S = 0.05
OnEnd = Callable[[int, Exchange, bool], None]


def ignore(index: int, exchange: Exchange, failed: bool) -> None:
    """Nobody looks at requests as they end."""


async def closed_loop(
    client: Client,
    asks: Sequence[Ask],
    concurrency: int,
    control: RunControl,
    on_end: OnEnd = ignore,
) -> list[Exchange | None]:
    """The exchange of each ask, in their order; None where the run stopped before it was sent.
    ``on_end`` is told (index, exchange, failed) as they end."""
    found: list[Exchange | None] = [None] * len(asks)
    waiting = iter(enumerate(asks))
    await client.open(min(concurrency, len(asks)))

    async def worker() -> None:
        for index, ask in waiting:
            if control.stopped is not None:
                return
            exchange = await client.exchange(ask)
            found[index] = exchange
            on_end(index, exchange, control.saw(exchange))

    async with asyncio.TaskGroup() as tasks:
        for _ in range(min(concurrency, len(asks))):
            tasks.create_task(worker())
    return found


async def open_loop(
    client: Client,
    asks: Sequence[Ask],
    offsets_s: Sequence[float],
    control: RunControl,
    on_end: OnEnd = ignore,
) -> tuple[float, list[Exchange | None]]:
    """Sends each ask at its offset from the start (ascending), whatever the others do. Returns the
    start (perf_counter) and the exchanges; None where the run stopped before it was due."""
    found: list[Exchange | None] = [None] * len(asks)
    begin_s = perf_counter() + _HEAD_START_S

    async def one(index: int, due_at_s: float) -> None:
        exchange = await client.exchange(asks[index], due_at_s=due_at_s)
        found[index] = exchange
        on_end(index, exchange, control.saw(exchange))

    async with asyncio.TaskGroup() as tasks:
        for index, offset_s in enumerate(offsets_s):
            due_at_s = begin_s + offset_s
            if await control.stopped_within(due_at_s - perf_counter()):
                break
            # A timer may be a fraction early; what is sent early is due then.
            tasks.create_task(one(index, min(due_at_s, perf_counter())))
    return begin_s, found
