"""Whether memory stays flat over many requests.

    python -m tests.soak.leaks --requests 200000 --out FILE -- --prefill 1 --decode 1

starts ``baton up`` with what follows ``--`` and sends tiny requests, ``--clients`` at a time, half
of them streamed, a tenth left by their client. After a first ``--warm`` share, each process's own
memory (resident, without the shared cache) is read ``--samples`` times. The first and the last
quarter of the samples are compared: their medians may differ by 2 %. Exit code 1 if more grew.
Redis is read too, but not judged: it keeps each record for an hour.
"""

import asyncio
import os
import random
import statistics
import sys
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import httpx
import typer

from bench.environment import describe
from bench.result_file import write
from bench.stack import Stack, StackFailed, private_mib, started

START_S = 300.0
MOST_GROWTH = 0.02
KEEPS_RECORDS = "redis-server"


async def one(http: httpx.AsyncClient, draw: random.Random, number: int) -> None:
    prompt = [1 + draw.randrange(99) for _ in range(draw.randint(1, 20))]
    body: dict[str, Any] = {"prompt": prompt, "max_tokens": 2, "seed": number}
    if number % 2:
        (await http.post("/v1/completions", json=body)).raise_for_status()
        return
    async with http.stream("POST", "/v1/completions", json=body | {"stream": True}) as answer:
        answer.raise_for_status()
        async for _ in answer.aiter_lines():
            if number % 10 == 0:
                return  # its client leaves


def descendants(pid: int) -> list[int]:
    """The process and all that it started, directly or not."""
    paths = Path(f"/proc/{pid}/task").glob("*/children")
    children = [int(child) for path in paths for child in path.read_text().split()]
    return [pid, *(below for child in children for below in descendants(child))]


def program(pid: int) -> str:
    """The module that a Python process runs, else the name of its program."""
    words = Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")
    return words[words.index("-m") + 1] if "-m" in words else Path(words[0].split()[0]).name


def memory_mib(stack: Stack) -> dict[str, float]:
    """Memory by program, of ``baton up``, its services, their helpers and the guardian."""
    found: defaultdict[str, float] = defaultdict(float)
    for pid in descendants(stack.process.pid):
        with suppress(OSError, LookupError):  # it has ended meanwhile
            found[program(pid)] += private_mib(pid)
    return dict(found)


async def measure(
    stack: Stack, requests: int, clients: int, warm: float, samples: int
) -> list[dict[str, float]]:
    found: list[dict[str, float]] = []
    numbers = iter(range(requests))
    every = max(1, round(requests * (1 - warm) / samples))
    async with httpx.AsyncClient(base_url=stack.url, timeout=120.0) as http:

        async def client(seed: int) -> None:
            draw = random.Random(seed)
            for number in numbers:
                await one(http, draw, number)
                behind = number - requests * warm
                if behind >= 0 and round(behind) % every == 0:
                    found.append(memory_mib(stack))

        await asyncio.gather(*(client(seed) for seed in range(clients)))
    return found


def growth(samples: list[dict[str, float]], role: str) -> float:
    """By how much the role's memory grew, as a share of what it had."""
    quarter = max(1, len(samples) // 4)
    first = statistics.median(each[role] for each in samples[:quarter])
    return statistics.median(each[role] for each in samples[-quarter:]) / first - 1.0


def main(
    arguments: Annotated[list[str], typer.Argument(help="For baton up.")],
    requests: Annotated[int, typer.Option(min=100, help="Requests in all.")] = 200_000,
    clients: Annotated[int, typer.Option(min=1, help="Requests open at a time.")] = 16,
    warm: Annotated[float, typer.Option(min=0.0, max=0.9, help="Share that is not read.")] = 0.25,
    samples: Annotated[int, typer.Option(min=8, help="Readings of the memory.")] = 100,
    out: Annotated[Path | None, typer.Option(help="Result file.")] = None,
) -> None:
    """Send tiny requests, and compare the memory at the beginning with that at the end."""
    began = perf_counter()
    try:
        with started(*arguments, start_s=START_S) as stack:
            found = asyncio.run(measure(stack, requests, clients, warm, samples))
            stack.stop()
    except StackFailed as error:
        raise SystemExit(f"error: {error}") from None
    always = set.intersection(*(set(each) for each in found))
    grown = {role: growth(found, role) for role in sorted(always)}
    for role, share in grown.items():
        print(f"{role}: {found[0][role]:.1f} to {found[-1][role]:.1f} MiB, {share:+.1%}")
    took_s = perf_counter() - began
    print(f"{requests} requests in {took_s:.0f} s, load {os.getloadavg()[0]:.1f}")
    if out is not None:
        environment = describe(sys.argv[1:], "tests.soak.leaks")
        results = {"requests": requests, "took_s": took_s, "growth": grown, "memory_mib": found}
        write(out, {"environment": environment, **results})
    grown.pop(KEEPS_RECORDS, None)
    raise SystemExit(int(any(share > MOST_GROWTH for share in grown.values())))


if __name__ == "__main__":
    typer.run(main)
