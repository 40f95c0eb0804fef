"""How soon the next prompt has its first token when the last prefill worker is killed.

    python -m tests.soak.failover --kills 5 --streams 4 --out bench/results/cpu-failover.json -- \\
        --prefill 1 --decode 2

starts ``baton up`` with what follows ``--``. For each kill, streams run until each has 20 tokens;
then every prefill worker gets SIGKILL. As soon as /status tells of the loss a prompt is sent, which
a decode worker must compute; then, until a prefill worker is back, one more after another. One line
a kill, and one in all.
"""

import asyncio
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import httpx
import typer

from bench.environment import describe
from bench.result_file import write
from bench.stack import Stack, StackFailed, started
from tests.soak.kill_gap import Stream
from tests.soak.stream_events import status, stream_events

START_S = 300.0
POLL_S = 0.005


@dataclass
class Failover:
    """Of one kill, in seconds: until the loss was noticed, from there to the next prompt's first
    token and until a prefill worker was back; the first tokens of the prompts sent meanwhile; the
    longest pause of each stream that was running."""

    noticed_s: float
    first_token_s: float
    back_s: float
    later_first_tokens_s: list[float]
    stream_pauses_s: list[float]


async def first_token_s(http: httpx.AsyncClient, seed: int, prompt_len: int) -> float:
    began = time.perf_counter()
    prompt = [1 + (seed + i) % 99 for i in range(prompt_len)]
    body = {"prompt": prompt, "max_tokens": 4, "seed": seed, "ignore_eos": True}
    arrivals = [at async for at, _ in stream_events(http, body)]
    if not arrivals:
        raise SystemExit("a stream ended without a token")
    return arrivals[0] - began


async def problems(http: httpx.AsyncClient, *, expected: bool) -> None:
    """Return once /status tells of problems, or of none."""
    async with asyncio.timeout(START_S):
        while bool((await status(http))["problems"]) is not expected:  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)  # the status can only be asked


async def fail_over(
    stack: Stack, http: httpx.AsyncClient, seed: int, streams: int, tokens: int, prompt_len: int
) -> Failover:
    running = [Stream(http, seed + number, tokens) for number in range(streams)]
    await asyncio.gather(*(stream.steady.wait() for stream in running))
    killed_at = time.perf_counter()
    for name in [name for name in stack.pids() if name.startswith("prefill")]:
        stack.kill(name)
    await problems(http, expected=True)
    noticed_at = time.perf_counter()
    first_s = await first_token_s(http, seed, prompt_len)
    back = asyncio.create_task(problems(http, expected=False))
    later = []
    while not back.done():
        later.append(await first_token_s(http, seed + len(later) + 1, prompt_len))
    back_at = time.perf_counter()
    await asyncio.gather(*(stream.task for stream in running))
    events = [[at for at in stream.at if killed_at - 1 <= at <= back_at] for stream in running]
    pauses = [max(b - a for a, b in pairwise(at)) for at in events if len(at) > 1]
    return Failover(noticed_at - killed_at, first_s, back_at - noticed_at, later, pauses)


async def measure(
    stack: Stack, kills: int, streams: int, tokens: int, prompt_len: int
) -> list[Failover]:
    found = []
    limits = httpx.Limits(max_connections=streams + 4)
    async with httpx.AsyncClient(base_url=stack.url, timeout=120.0, limits=limits) as http:
        num_workers = len((await status(http))["workers"])
        await first_token_s(http, 0, prompt_len)
        for number in range(kills):
            found.append(
                await fail_over(stack, http, 1_000 * (number + 1), streams, tokens, prompt_len)
            )
            one = found[-1]
            print(
                f"noticed after {one.noticed_s:.3f} s; first token {one.first_token_s:.3f} s on; "
                f"{len(one.later_first_tokens_s)} more prompts in the {one.back_s:.1f} s until a "
                f"prefill worker was back; longest pause of a stream "
                f"{max(one.stream_pauses_s, default=0.0):.3f} s",
                flush=True,
            )
            async with asyncio.timeout(START_S):
                while len((await status(http))["workers"]) < num_workers:  # noqa: ASYNC110
                    await asyncio.sleep(0.2)
    return found


def main(
    arguments: Annotated[list[str], typer.Argument(help="For baton up.")],
    kills: Annotated[int, typer.Option(min=1, help="Times that all prefill workers die.")] = 5,
    streams: Annotated[int, typer.Option(min=0, help="Streams at each kill.")] = 4,
    num_tokens: Annotated[int, typer.Option(min=50, help="Tokens of each stream.")] = 300,
    prompt_len: Annotated[int, typer.Option(min=1, help="Tokens of each prompt.")] = 100,
    out: Annotated[Path | None, typer.Option(help="Result file.")] = None,
) -> None:
    """Kill every prefill worker, and time the first token of the next prompts."""
    try:
        with started(*arguments, start_s=START_S) as stack:
            found = asyncio.run(measure(stack, kills, streams, num_tokens, prompt_len))
            stack.stop()
    except StackFailed as error:
        raise SystemExit(f"error: {error}") from None
    firsts = sorted(one.first_token_s for one in found)
    median = statistics.median(firsts)
    print(f"first token p50 {median:.3f} s, max {firsts[-1]:.3f} s, n {len(firsts)}")
    if out is not None:
        environment = describe(sys.argv[1:], "tests.soak.failover")
        settings = {"streams": streams, "prompt_len": prompt_len}
        results = {"kills": [asdict(one) for one in found], "first_token_p50_s": median}
        write(out, {"environment": environment, **settings, **results})


if __name__ == "__main__":
    typer.run(main)
