"""How soon the stack is whole again when the coordinator is killed under load, again and again.

    python -m tests.soak.coordinator_kills --kills 6 --every 4 -- --prefill 1 --decode 2

starts ``baton up`` with what follows ``--``. Clients send one streamed request after another, each
behind the same long prefix. For each kill the coordinator gets SIGKILL, ``--every`` seconds after
the stack was whole. Times from the kill: until /status names every worker and no problem (*whole*),
and until a request that was sent at once has its first token. One line a kill, with the tokens that
this request did not have to compute, and one in all.
"""

import asyncio
import os
import statistics
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer

from bench.environment import describe
from bench.result_file import write
from bench.stack import Stack, StackFailed, started
from tests.soak.stream_events import status, stream_events

START_S = 300.0
WHOLE_S = 90.0
POLL_S = 0.02
PREFIX = [1 + n % 99 for n in range(256)]


@dataclass
class Kill:
    """What followed one kill. ``cached_tokens`` of the request's prompt were not computed;
    ``workers_kept`` of the workers are those from before."""

    whole_s: float
    first_token_s: float
    cached_tokens: int
    workers_kept: int


class Clients:
    """``num`` clients, each with one request after another."""

    def __init__(self, http: httpx.AsyncClient, num: int) -> None:
        self._http = http
        self._tasks = [asyncio.create_task(self._run(number)) for number in range(num)]

    async def _run(self, number: int) -> None:
        for turn in range(10**9):
            body = {"prompt": [*PREFIX, 1 + number, 1 + turn % 99], "max_tokens": 40}
            with suppress(httpx.HTTPError, ValueError):
                async for _ in stream_events(self._http, body | {"ignore_eos": True}):
                    pass

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)


async def asked(http: httpx.AsyncClient) -> tuple[float, int]:
    """When a request that is sent until it is accepted has its first token (``perf_counter``), and
    its cached tokens."""
    body: dict[str, Any] = {"prompt": [*PREFIX, 100], "max_tokens": 2, "ignore_eos": True}
    body["stream_options"] = {"include_usage": True}
    async with asyncio.timeout(WHOLE_S):
        while True:
            try:
                events = [each async for each in stream_events(http, body)]
            except httpx.HTTPError:
                await asyncio.sleep(POLL_S)
                continue
            details = events[-1][1]["usage"].get("prompt_tokens_details") or {}
            return events[0][0], details.get("cached_tokens", 0)


async def whole(http: httpx.AsyncClient, num_workers: int) -> set[str]:
    """Wait until /status names ``num_workers`` workers and no problem; returns their instances."""
    async with asyncio.timeout(WHOLE_S):
        while True:
            with suppress(httpx.HTTPError):
                found = await status(http)
                if len(found["workers"]) == num_workers and not found["problems"]:
                    return {worker["instance"] for worker in found["workers"]}
            await asyncio.sleep(POLL_S)


async def measure(stack: Stack, kills: int, num_clients: int, every_s: float) -> list[Kill]:
    found = []
    num_workers = len([name for name in stack.pids() if name not in ("coordinator", "redis")])
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=stack.url, timeout=120.0, limits=limits) as http:
        before = await whole(http, num_workers)
        clients = Clients(http, num_clients)
        for _ in range(kills):
            await asyncio.sleep(every_s)
            killed_at = time.perf_counter()
            stack.kill("coordinator")
            answer = asyncio.create_task(asked(http))
            now = await whole(http, num_workers)
            whole_s = time.perf_counter() - killed_at
            first_at, cached = await answer
            found.append(Kill(whole_s, first_at - killed_at, cached, len(before & now)))
            print(f"load {os.getloadavg()[0]:.1f}: {found[-1]}", flush=True)
        await clients.close()
    return found


def main(
    arguments: Annotated[list[str], typer.Argument(help="For baton up.")],
    kills: Annotated[int, typer.Option(min=1, help="Times that the coordinator dies.")] = 6,
    clients: Annotated[int, typer.Option(min=0, help="Clients that send requests.")] = 8,
    every: Annotated[float, typer.Option(min=0, help="Seconds from whole to the next kill.")] = 5.0,
    out: Annotated[Path | None, typer.Option(help="Result file.")] = None,
) -> None:
    """Kill the coordinator under load, and time how soon the stack is whole."""
    try:
        with started(*arguments, start_s=START_S) as stack:
            found = asyncio.run(measure(stack, kills, clients, every))
            stack.stop()
    except StackFailed as error:
        raise SystemExit(f"error: {error}") from None
    times = sorted(one.whole_s for one in found)
    print(f"whole p50 {statistics.median(times):.2f} s, max {times[-1]:.2f} s, n {len(times)}")
    if out is not None:
        environment = describe(sys.argv[1:], "tests.soak.coordinator_kills")
        settings = {"clients": clients, "every_s": every, "load": os.getloadavg()}
        results = {"kills": [asdict(one) for one in found], "whole_max_s": times[-1]}
        write(out, {"environment": environment, **settings, **results})


if __name__ == "__main__":
    typer.run(main)
