"""How long streams stand still when their decode worker is killed.

    python -m bench.kill_gap --kills 6 --streams 8 --out bench/results/cpu-kill-gap.json -- \\
        --prefill 1 --decode 2

starts ``baton up`` with what follows ``--``. For each kill, streams run until each has 20 tokens;
then a worker that decodes gets SIGKILL, each in turn. A stream's gap lies between its last event
before and its first event after; those of requests that were placed anew count. One line a kill,
and one in all.
"""

import asyncio
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer

from bench.environment import describe
from bench.stack import Stack, StackFailed, started

START_S = 300.0
STEADY_TOKENS = 20


class Stream:
    """One streamed answer: when each event came (perf_counter)."""

    def __init__(self, http: httpx.AsyncClient, seed: int, num_tokens: int) -> None:
        self.request_id = ""
        self.at: list[float] = []
        self.finished = False
        self.steady = asyncio.Event()
        self.task = asyncio.create_task(self._run(http, seed, num_tokens))

    async def _run(self, http: httpx.AsyncClient, seed: int, num_tokens: int) -> None:
        body = {
            "prompt": list(range(1, 100)), "max_tokens": num_tokens, "seed": seed, "stream": True,
            "ignore_eos": True,
        }  # fmt: skip
        async with http.stream("POST", "/v1/completions", json=body) as response:
            response.raise_for_status()
            async for line in response.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                event = json.loads(line.removeprefix("data: "))
                self.at.append(time.perf_counter())
                self.request_id = event["id"]
                self.finished = any(c["finish_reason"] == "length" for c in event["choices"])
                if len(self.at) == STEADY_TOKENS:
                    self.steady.set()

    def gap_s(self, at: float) -> float:
        """Between the events around ``at``."""
        after = next((i for i, event in enumerate(self.at) if event > at), None)
        if not after:
            raise SystemExit("a stream ended before the kill: a larger --num-tokens is needed")
        return self.at[after] - self.at[after - 1]


async def round_of(
    stack: Stack, http: httpx.AsyncClient, victim: str, num: int, num_tokens: int
) -> list[float]:
    """Gaps of the streams whose request was placed anew."""
    streams = [Stream(http, seed, num_tokens) for seed in range(num)]
    await asyncio.gather(*(stream.steady.wait() for stream in streams))
    killed_at = time.perf_counter()
    stack.kill(victim)
    await asyncio.gather(*(stream.task for stream in streams))
    gaps_s = []
    for stream in streams:
        if not stream.finished:
            raise SystemExit(f"{stream.request_id} ended early")
        record = (await http.get(f"/v1/requests/{stream.request_id}")).json()
        if record["attempts"] > 1:
            gaps_s.append(stream.gap_s(killed_at))
    return gaps_s


async def whole(http: httpx.AsyncClient, num_workers: int) -> None:
    """Until all workers are back."""
    async with asyncio.timeout(START_S):
        while len((await http.get("/status")).json()["workers"]) < num_workers:  # noqa: ASYNC110
            await asyncio.sleep(0.2)


async def measure(stack: Stack, kills: int, num: int, num_tokens: int) -> list[list[float]]:
    """Gaps by kill, in seconds."""
    workers = [name for name in stack.pids() if name.startswith(("prefill", "decode", "colocated"))]
    victims = sorted(name for name in workers if not name.startswith("prefill"))
    found: list[list[float]] = []
    limits = httpx.Limits(max_connections=num + 1)
    async with httpx.AsyncClient(base_url=stack.url, timeout=120.0, limits=limits) as http:
        for number in range(kills):
            await whole(http, len(workers))
            victim = victims[number % len(victims)]
            gaps_s = await round_of(stack, http, victim, num, num_tokens)
            found.append(gaps_s)
            print(
                f"{victim}: {len(gaps_s)} streams moved, longest gap {max(gaps_s, default=0):.3f} s"
            )
    return found


def main(
    arguments: Annotated[list[str], typer.Argument(help="For baton up.")],
    kills: Annotated[int, typer.Option(min=1, help="Workers that are killed.")] = 6,
    streams: Annotated[int, typer.Option(min=1, help="Streams at each kill.")] = 8,
    num_tokens: Annotated[int, typer.Option(min=50, help="Tokens of each stream.")] = 300,
    out: Annotated[Path | None, typer.Option(help="Result file.")] = None,
) -> None:
    """Kill workers that decode, and time how long their streams stand still."""
    try:
        with started(*arguments, start_s=START_S) as stack:
            by_kill = asyncio.run(measure(stack, kills, streams, num_tokens))
            stack.stop()
    except StackFailed as error:
        raise SystemExit(f"error: {error}") from None
    gaps_s = sorted(gap for found in by_kill for gap in found)
    if not gaps_s:
        raise SystemExit("no stream was on a worker that was killed")
    median = statistics.median(gaps_s)
    print(f"gap p50 {median:.3f} s, max {gaps_s[-1]:.3f} s, n {len(gaps_s)}")
    if out is not None:
        result: dict[str, Any] = {
            "environment": describe(sys.argv[1:], "bench.kill_gap"),
            "streams": streams,
            "gaps_s": [[round(gap, 4) for gap in found] for found in by_kill],
            "p50_s": round(median, 4),
            "max_s": round(gaps_s[-1], 4),
        }
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
