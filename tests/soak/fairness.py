"""What one API key's request waits for while hundreds of another key's are open.

    python -m tests.soak.fairness --requests 500 --out bench/results/cpu-fairness.json -- \\
        --prefill 1 --decode 1

starts ``baton up`` with two keys of the same weight and what follows ``--``. One key asks
``--probes`` times alone; then the other one sends ``--requests`` streamed requests at once, and the
first key asks as often again. One line with the medians of the time to its first token, how often
it asked while all were open, and the time of one step: the median between two tokens of the other
key's streams meanwhile.
"""

import asyncio
import os
import statistics
import sys
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import httpx
import typer

from bench.environment import describe
from bench.result_file import write
from bench.stack import Stack, StackFailed, started
from tests.soak.stream_events import stream_events

START_S = 300.0
KEYS = {"batch": "sk-batch-0123456789abcdef", "chat": "sk-chat-0123456789abcdef"}


def client(stack: Stack, name: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=stack.url, timeout=600.0, limits=httpx.Limits(max_connections=None),
        headers={"Authorization": f"Bearer {KEYS[name]}"},
    )  # fmt: skip


def body(seed: int, prompt_len: int, max_tokens: int) -> dict[str, Any]:
    prompt = [1 + (seed * 7 + i * 13) % 99 for i in range(prompt_len)]
    return {"prompt": prompt, "max_tokens": max_tokens, "seed": seed, "ignore_eos": True}


async def first_token_s(http: httpx.AsyncClient, seed: int, prompt_len: int) -> float:
    began = perf_counter()
    arrivals = [at async for at, _ in stream_events(http, body(seed, prompt_len, 4))]
    return arrivals[0] - began


async def probed(http: httpx.AsyncClient, probes: int, prompt_len: int, seed: int) -> list[float]:
    times = []
    for number in range(probes):
        times.append(await first_token_s(http, seed + number, prompt_len))
        await asyncio.sleep(0.2)
    return times


async def measure(
    stack: Stack, requests: int, probes: int, prompt_len: int, max_tokens: int
) -> dict[str, Any]:
    steps: list[float] = []
    num_ended = 0

    async def one(http: httpx.AsyncClient, seed: int) -> None:
        nonlocal num_ended
        before = 0.0
        async for at, _ in stream_events(http, body(seed, prompt_len, max_tokens)):
            if before:
                steps.append(at - before)
            before = at
        num_ended += 1

    async with client(stack, "chat") as chat, client(stack, "batch") as batch:
        await probed(chat, 3, prompt_len, 10_000)
        alone = await probed(chat, probes, prompt_len, 20_000)
        flood = [asyncio.create_task(one(batch, seed)) for seed in range(requests)]
        await asyncio.sleep(2.0)
        beside = await probed(chat, probes, prompt_len, 30_000)
        num_open = requests - num_ended
        for task in flood:
            task.cancel()
        await asyncio.wait(flood)
    return {
        "alone_s": alone,
        "beside_s": beside,
        "open_at_the_end": num_open,
        "step_s": statistics.median(steps),
        "load": os.getloadavg()[0],
    }


def main(
    arguments: Annotated[list[str], typer.Argument(help="For baton up.")],
    requests: Annotated[int, typer.Option(min=1, help="Requests of the other key.")] = 500,
    probes: Annotated[int, typer.Option(min=1, help="Requests that are timed.")] = 15,
    prompt_len: Annotated[int, typer.Option(min=1, help="Tokens of each prompt.")] = 200,
    max_tokens: Annotated[int, typer.Option(min=2, help="Tokens of the others' answers.")] = 100,
    out: Annotated[Path | None, typer.Option(help="Result file.")] = None,
) -> None:
    """Time the first token of one key's requests, alone and beside another key's."""
    keys = "\n".join(f"{name}:{key}" for name, key in KEYS.items())
    try:
        with started(*arguments, settings={"api_keys": keys}, start_s=START_S) as stack:
            found = asyncio.run(measure(stack, requests, probes, prompt_len, max_tokens))
            stack.stop()
    except StackFailed as error:
        raise SystemExit(f"error: {error}") from None
    alone_s, beside_s = (statistics.median(found[name]) for name in ("alone_s", "beside_s"))
    print(
        f"first token alone {alone_s * 1e3:.0f} ms, beside {requests} requests "
        f"{beside_s * 1e3:.0f} ms (p50), {max(found['beside_s']) * 1e3:.0f} ms (max); "
        f"step {found['step_s'] * 1e3:.0f} ms; {found['open_at_the_end']} open at the end; "
        f"aim {(2 * alone_s + found['step_s']) * 1e3:.0f} ms; load {found['load']:.1f}"
    )
    if out is not None:
        environment = describe(sys.argv[1:], "tests.soak.fairness")
        write(out, {"environment": environment, "requests": requests, **found})


if __name__ == "__main__":
    typer.run(main)
