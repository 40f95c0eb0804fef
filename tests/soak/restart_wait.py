"""What clients see of a planned restart of the coordinator.

    python -m tests.soak.restart_wait [--requests 175] [--seconds 14] [--tokens 4] [--streams 2]

Starts ``baton up`` on the bundled model and sends requests at an even rate, each on a connection of
its own or, every other one, on one that is kept; a few long streams run beside them. A third of the
way through the coordinator gets SIGTERM. Prints how many were answered, refused, cut off or told
503, the longest wait of an answer, and when the next process took work.
"""

import asyncio
import os
import signal
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field

import httpx
import typer

from bench.stack import ROOT, Stack, StackFailed, running

START_S = 300.0


@dataclass
class Seen:
    """How many answers of each kind, and how long each took."""

    kinds: Counter[str] = field(default_factory=Counter)
    waits_s: list[float] = field(default_factory=list)

    async def ask(self, http: httpx.AsyncClient, tokens: int) -> None:
        began = time.perf_counter()
        body = {"prompt": [1, 2, 3], "max_tokens": tokens, "ignore_eos": True}
        try:
            response = await http.post("/v1/completions", json=body)
        except httpx.ConnectError:
            self.kinds["refused"] += 1
        except httpx.TransportError as error:
            self.kinds[f"cut off ({type(error).__name__})"] += 1
        else:
            self.kinds[str(response.status_code)] += 1
            self.waits_s.append(time.perf_counter() - began)


async def measure(
    stack: Stack, requests: int, seconds: float, tokens: int, streams: int
) -> tuple[Seen, Seen]:
    """The requests, and the long ones."""
    seen, long = Seen(), Seen()
    fresh = httpx.Limits(max_keepalive_connections=0)
    kept = httpx.AsyncClient(base_url=stack.url, timeout=120.0)
    apart = httpx.AsyncClient(base_url=stack.url, timeout=120.0, limits=fresh)
    async with kept, apart, asyncio.TaskGroup() as tasks:
        for number in range(requests):
            if number == requests // 3:
                for _ in range(streams):
                    tasks.create_task(long.ask(apart, 40))
                await asyncio.sleep(0.2)
                tasks.create_task(restarted(stack, apart))
            tasks.create_task(seen.ask((kept, apart)[number % 2], tokens))
            await asyncio.sleep(seconds / requests)
    return seen, long


async def restarted(stack: Stack, http: httpx.AsyncClient) -> None:
    """Say when the old process had ended, and when another one answered."""
    began = time.perf_counter()
    old = stack.kill("coordinator", signal.SIGTERM)
    async with asyncio.timeout(60.0):
        while os.path.exists(f"/proc/{old}"):  # noqa: ASYNC110, ASYNC240
            await asyncio.sleep(0.01)
        ended_s = time.perf_counter() - began
        while not await ready(http):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    print(f"ended after {ended_s:.2f} s, ready again after {time.perf_counter() - began:.2f} s")


async def ready(http: httpx.AsyncClient) -> bool:
    with suppress(httpx.TransportError):
        return (await http.get("/ready")).status_code == 200
    return False


def main(requests: int = 175, seconds: float = 14.0, tokens: int = 4, streams: int = 2) -> None:
    """Restart the coordinator under an even rate of requests."""
    try:
        with running(ROOT / "models" / "tiny", start_s=START_S) as stack:
            seen, long = asyncio.run(measure(stack, requests, seconds, tokens, streams))
    except StackFailed as error:
        raise SystemExit(f"error: {error}") from None
    longest_s = max(seen.waits_s)
    print(f"requests: {dict(seen.kinds)}, longest wait {longest_s:.2f} s; long: {dict(long.kinds)}")


if __name__ == "__main__":
    typer.run(main)
