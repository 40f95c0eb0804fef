"""``python -m bench.interference``: the pace of running streams while long prompts arrive, the
reason to disaggregate as a number.

A stack is measured twice: with steady streams alone (quiet), and with the same streams while long
prompts arrive at a fixed rate (disturbed). The figures are for the time in which all streams run:
the gaps between tokens in all of it, the gaps while a long prompt waited for its first token, and
the TTFT of the long prompts. As a warm-up, the streams and one long prompt run once before.
"""

import asyncio
import random
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import typer

from bench.harness.cannot_measure import CannotMeasure
from bench.harness.client.asking import Ask, completion
from bench.harness.client.client import Client
from bench.harness.client.endpoint import endpoint
from bench.harness.client.record import Record
from bench.harness.server_info import ask_server
from bench.recording import Recording
from bench.token_gaps import NotMeasured, figures

NUM_IDS = 200_000
"""Ids of prompts are below this; special tokens have the highest ids."""


@dataclass(frozen=True)
class Load:
    """``num_streams`` streams with prompts of ``stream_prompt`` tokens and ``stream_tokens`` in
    their answers. Every ``every_s`` arrives a prompt of ``arrival_prompt`` tokens with
    ``arrival_tokens`` in its answer, at most ``num_arrivals``. Token ids are below ``vocab``."""

    num_streams: int
    stream_prompt: int
    stream_tokens: int
    num_arrivals: int
    arrival_prompt: int
    arrival_tokens: int
    every_s: float
    vocab: int
    seed: int = 0


async def measure(url: str, load: Load) -> dict[str, Any]:
    """Measure both phases against the server at ``url``. Raises NotMeasured."""
    async with Client(endpoint(url)) as client:
        try:
            asker = _Asker(client, (await ask_server(client, None)).model, load)
        except CannotMeasure as error:
            raise NotMeasured(str(error)) from None
        # Warm-up: the streams, and a long prompt beside them.
        (long,) = asker.asks("warm-up", 1, load.arrival_prompt, load.arrival_tokens)
        streams, record = await asyncio.gather(_streams(asker, "1"), client.send(long))
        _whole([*streams, record])
        quiet = _whole(await _streams(asker, "2"))
        running = asyncio.create_task(_streams(asker, "2"))
        arrivals = await _arrive(asker, running)
        disturbed = _whole(await running)
    return figures(quiet, disturbed, arrivals)


async def _streams(asker: "_Asker", seed: str) -> list[Record]:
    load = asker.load
    asks = asker.asks(seed, load.num_streams, load.stream_prompt, load.stream_tokens)
    return await asyncio.gather(*(asker.client.send(ask) for ask in asks))


async def _arrive(asker: "_Asker", streams: "asyncio.Task[list[Record]]") -> list[Record]:
    """Send prompts at their times while the streams run, and wait for their answers."""
    load = asker.load
    asks = asker.asks("arrivals", load.num_arrivals, load.arrival_prompt, load.arrival_tokens)
    begin = perf_counter()
    sent: list[asyncio.Task[Record]] = []
    for number, ask in enumerate(asks, start=1):
        due_at_s = begin + number * load.every_s
        await asyncio.wait({streams}, timeout=max(0.0, due_at_s - perf_counter()))
        if streams.done():
            break
        sent.append(asyncio.create_task(asker.client.send(ask, due_at_s=due_at_s)))
    return list(await asyncio.gather(*sent))


@dataclass(frozen=True)
class _Asker:
    client: Client
    model: str
    load: Load

    def asks(self, seed: str, count: int, length: int, max_tokens: int) -> list[Ask]:
        """Requests of random ids, the same for the same seed."""
        draw = random.Random(f"{self.load.seed} {seed}")
        fields = {"max_tokens": max_tokens, "ignore_eos": True, "temperature": 1}
        prompts = [[draw.randrange(self.load.vocab) for _ in range(length)] for _ in range(count)]
        return [completion(self.model, prompt, **fields) for prompt in prompts]


def _whole(streams: list[Record]) -> list[Record]:
    for record in streams:
        if not record.ok:
            raise NotMeasured(f"a request failed: {record.failure}: {record.detail}")
    return streams


def main(
    url: Annotated[str, typer.Option(help="The server.")],
    out: Annotated[Path, typer.Option(help="Result file.")],
    streams: Annotated[int, typer.Option(help="Streams that run all the time.")] = 32,
    stream_prompt: Annotated[int, typer.Option(help="Tokens of their prompts.")] = 1024,
    stream_tokens: Annotated[int, typer.Option(help="Tokens of their answers.")] = 1024,
    arrivals: Annotated[int, typer.Option(help="Long prompts, at most.")] = 40,
    arrival_prompt: Annotated[int, typer.Option(help="Tokens of each.")] = 8192,
    every_s: Annotated[float, typer.Option(help="Seconds from one to the next.")] = 0.25,
    num_ids: Annotated[int, typer.Option(help="Ids of prompts are below.")] = NUM_IDS,
    setup: Annotated[str, typer.Option(help="What the result is called.")] = "server",
) -> None:
    """Measure a server without and with long prompts arriving."""
    load = Load(
        streams, stream_prompt, stream_tokens, arrivals, arrival_prompt, 1, every_s, num_ids
    )
    run = Recording("bench.interference", out, asdict(load))
    try:
        run.results[setup] = found = asyncio.run(measure(url, load))
    except NotMeasured as error:
        run.end(stopped=str(error))
    run.problems += found["arrivals"]["failed"]
    if not found["arrivals"]["within_steady"]:
        run.problems.append("no long prompt came and had its first token while all streams ran")
    run.end()


if __name__ == "__main__":
    typer.run(main)
