"""What clients see of a planned restart of the coordinator.

    python -m bench.restart_wait [--requests 175] [--seconds 14] [--tokens 4] [--streams 2]

Starts ``baton up`` on the bundled model and sends requests at an even rate, each on a connection of
its own or, every other one, on one that is kept; a few long streams run beside them. A third of the
way through the coordinator gets SIGTERM. Prints how many were answered, refused, cut off or told
503, the longest wait of an answer, and when the next process took work.
"""

import argparse
import asyncio
import os
import signal
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import httpx

from bench.stack import Stack, StackFailed, started

START_S = 300.0
BUNDLED = Path(__file__).resolve().parent.parent / "models" / "tiny"


async def ask(
    http: httpx.AsyncClient, tokens: int, seen: Counter[str], waits_s: list[float]
) -> None:
    began = time.perf_counter()
    body = {"prompt": [1, 2, 3], "max_tokens": tokens, "ignore_eos": True}
    try:
        response = await http.post("/v1/completions", json=body)
    except httpx.ConnectError:
        seen["refused"] += 1
    except httpx.TransportError as error:
        seen[f"cut off ({type(error).__name__})"] += 1
    else:
        seen[str(response.status_code)] += 1
        waits_s.append(time.perf_counter() - began)


async def measure(stack: Stack, args: argparse.Namespace) -> None:
    seen: Counter[str] = Counter()
    long: Counter[str] = Counter()
    waits_s: list[float] = []
    fresh = httpx.Limits(max_keepalive_connections=0)
    kept = httpx.AsyncClient(base_url=stack.url, timeout=120.0)
    apart = httpx.AsyncClient(base_url=stack.url, timeout=120.0, limits=fresh)
    async with kept, apart, asyncio.TaskGroup() as tasks:
        for number in range(args.requests):
            if number == args.requests // 3:
                for _ in range(args.streams):
                    tasks.create_task(ask(apart, 40, long, []))
                await asyncio.sleep(0.2)
                told_at = time.perf_counter()
                old = stack.kill("coordinator", signal.SIGTERM)
                tasks.create_task(told(stack, old, told_at))
            tasks.create_task(ask((kept, apart)[number % 2], args.tokens, seen, waits_s))
            await asyncio.sleep(args.seconds / args.requests)
    print(f"requests: {dict(seen)}, longest wait {max(waits_s):.2f} s; long ones: {dict(long)}")


async def ready(http: httpx.AsyncClient) -> bool:
    with suppress(httpx.TransportError):
        return (await http.get("/ready")).status_code == 200
    return False


async def told(stack: Stack, old: int, told_at: float) -> None:
    """Say when the old process had ended, and when another one answered."""
    while os.path.exists(f"/proc/{old}"):  # noqa: ASYNC110, ASYNC240
        await asyncio.sleep(0.01)
    ended_s = time.perf_counter() - told_at
    async with httpx.AsyncClient(base_url=stack.url, timeout=120.0) as http, asyncio.timeout(60.0):
        while not await ready(http):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    print(f"ended after {ended_s:.2f} s, ready again after {time.perf_counter() - told_at:.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=175)
    parser.add_argument("--seconds", type=float, default=14.0)
    parser.add_argument("--tokens", type=int, default=4)
    parser.add_argument("--streams", type=int, default=2)
    args = parser.parse_args()
    arguments = ["--model", str(BUNDLED), "--device", "cpu"]
    try:
        with started(*arguments, start_s=START_S) as stack:
            asyncio.run(measure(stack, args))
            stack.stop()
    except StackFailed as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main()
