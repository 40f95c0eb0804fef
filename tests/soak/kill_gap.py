"""How long streams stand still when their decode worker is killed, or drains.

    python -m tests.soak.kill_gap --kills 6 --streams 8 --out bench/results/cpu-kill-gap.json -- \\
        --prefill 1 --decode 2
    python -m tests.soak.kill_gap --drain --out bench/results/cpu-drain-gap.json -- \\
        --prefill 1 --decode 2

starts ``baton up`` with what follows ``--``. For each kill, streams run until each has 20 tokens;
then a worker that decodes gets SIGKILL, each in turn. A stream's gap lies between its last event
before and its first event after; those of requests that were placed again count. One line a kill,
and one in all. With ``--drain`` the worker gets SIGTERM: then the longest gap of each stream that
moved counts, and how long its process lived on.
"""

import asyncio
import random
import signal
import statistics
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

import httpx
import typer

from bench.environment import describe
from bench.measures import longest_gap
from bench.result_file import write
from bench.stack import Stack, StackFailed, started
from tests.soak.stream_events import all_back, stream_events

START_S = 300.0
STEADY_TOKENS = 20


@dataclass(frozen=True)
class Load:
    """``num_streams`` streams at once, each of ``prompt_len`` random tokens and ``num_tokens``."""

    num_streams: int
    num_tokens: int
    prompt_len: int


class Stream:
    """One streamed answer: when each event came (perf_counter)."""

    def __init__(self, http: httpx.AsyncClient, seed: int, load: Load) -> None:
        self.at: list[float] = []
        self.steady = asyncio.Event()
        draw = random.Random(seed)
        prompt = [draw.randrange(1, 200) for _ in range(load.prompt_len)]
        body = {"prompt": prompt, "max_tokens": load.num_tokens, "seed": seed, "temperature": 1.0}
        self.task = asyncio.create_task(self._run(http, body | {"ignore_eos": True}))

    async def _run(self, http: httpx.AsyncClient, body: dict[str, object]) -> str:
        """The request's id; raises SystemExit when it ended early."""
        name, finished = "", False
        async for at_s, event in stream_events(http, body):
            self.at.append(at_s)
            name = event["id"]
            finished = any(choice["finish_reason"] == "length" for choice in event["choices"])
            if len(self.at) == STEADY_TOKENS:
                self.steady.set()
        if not finished:
            raise SystemExit(f"{name} ended early")
        return name

    def gap_s(self, at: float) -> float:
        """Between the events around ``at``."""
        after = next((i for i, event in enumerate(self.at) if event > at), None)
        if not after:
            raise SystemExit("a stream ended before the kill: a larger --num-tokens is needed")
        return self.at[after] - self.at[after - 1]


def _lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@dataclass
class Drains:
    """What was seen of the drains, in seconds from each SIGTERM: how long the process lived on, and
    when the longest gaps of the streams that moved ended."""

    gone_s: list[float] = field(default_factory=list)
    gap_ends_s: list[list[float]] = field(default_factory=list)


async def gaps_of_drain(
    stack: Stack, http: httpx.AsyncClient, victim: str, load: Load, seen: Drains
) -> list[float]:
    """Longest gaps of the streams that moved, from the SIGTERM to their ends."""
    streams = [Stream(http, seed, load) for seed in range(load.num_streams)]
    await asyncio.gather(*(stream.steady.wait() for stream in streams))
    pid = stack.pids()[victim]
    told_at = time.perf_counter()
    stack.kill(victim, signal.SIGTERM)
    while _lives(pid):  # noqa: ASYNC110
        await asyncio.sleep(0.005)  # a process of another parent can only be looked for
    seen.gone_s.append(time.perf_counter() - told_at)
    gaps = []
    for stream in streams:
        record = (await http.get(f"/v1/requests/{await stream.task}")).json()
        if record["moves"]:
            gaps.append(longest_gap(stream.at, told_at))
    seen.gap_ends_s.append([ended_at - told_at for _, ended_at in gaps])
    return [gap_s for gap_s, _ in gaps]


async def gaps_of_kill(
    stack: Stack, http: httpx.AsyncClient, victim: str, load: Load
) -> list[float]:
    """Gaps of the streams whose request was placed again."""
    streams = [Stream(http, seed, load) for seed in range(load.num_streams)]
    await asyncio.gather(*(stream.steady.wait() for stream in streams))
    killed_at = time.perf_counter()
    stack.kill(victim)
    gaps_s = []
    for stream in streams:
        record = (await http.get(f"/v1/requests/{await stream.task}")).json()
        if record["attempts"] > 1:
            gaps_s.append(stream.gap_s(killed_at))
    return gaps_s


async def measure(stack: Stack, kills: int, load: Load, drains: Drains | None) -> list[list[float]]:
    """Gaps by kill, in seconds; with ``drains`` of workers that drain."""
    workers = [name for name in stack.pids() if name != "coordinator" and "redis" not in name]
    victims = sorted(name for name in workers if not name.startswith("prefill"))
    found: list[list[float]] = []
    limits = httpx.Limits(max_connections=load.num_streams + 1)
    async with httpx.AsyncClient(base_url=stack.url, timeout=120.0, limits=limits) as http:
        for number in range(kills):
            await all_back(http, len(workers), START_S)
            victim = victims[number % len(victims)]
            if drains is not None:
                gaps_s = await gaps_of_drain(stack, http, victim, load, drains)
                ends = drains.gap_ends_s[-1]
                when = f"{min(ends):.3f} to {max(ends):.3f} s" if ends else "nothing moved"
                print(f"{victim}: gone after {drains.gone_s[-1]:.3f} s, gaps ended {when}")
            else:
                gaps_s = await gaps_of_kill(stack, http, victim, load)
            found.append(gaps_s)
            longest_s = max(gaps_s, default=0.0)
            print(f"{victim}: {len(gaps_s)} streams moved, longest gap {longest_s:.3f} s")
    return found


def main(
    arguments: Annotated[list[str], typer.Argument(help="For baton up.")],
    kills: Annotated[int, typer.Option(min=1, help="Workers that are killed.")] = 6,
    streams: Annotated[int, typer.Option(min=1, help="Streams at each kill.")] = 8,
    num_tokens: Annotated[int, typer.Option(min=50, help="Tokens of each stream.")] = 300,
    prompt_len: Annotated[int, typer.Option(min=1, help="Tokens of each prompt.")] = 99,
    drain: Annotated[bool, typer.Option("--drain", help="SIGTERM instead of SIGKILL.")] = False,
    out: Annotated[Path | None, typer.Option(help="Result file.")] = None,
) -> None:
    """Kill workers that decode, and time how long their streams stand still."""
    load = Load(streams, num_tokens, prompt_len)
    try:
        with started(*arguments, start_s=START_S) as stack:
            drains = Drains() if drain else None
            by_kill = asyncio.run(measure(stack, kills, load, drains))
            stack.stop()
    except StackFailed as error:
        raise SystemExit(f"error: {error}") from None
    gaps_s = sorted(gap for found in by_kill for gap in found)
    if not gaps_s:
        raise SystemExit("no stream was on a worker that was killed")
    median = statistics.median(gaps_s)
    print(f"gap p50 {median:.3f} s, max {gaps_s[-1]:.3f} s, n {len(gaps_s)}")
    if out is not None:
        environment = describe(sys.argv[1:], "tests.soak.kill_gap")
        found = {"environment": environment, "streams": streams, "gaps_s": by_kill}
        found |= {} if drains is None else asdict(drains)
        write(out, {**found, "p50_s": median, "max_s": gaps_s[-1]})


if __name__ == "__main__":
    typer.run(main)
