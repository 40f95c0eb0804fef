"""``python -m bench.interference``: the pace of running streams while long prompts arrive.

This is the reason to disaggregate, as a number. A set-up is measured twice: with steady streams
alone (quiet), and with the same streams while long prompts arrive at a fixed rate (disturbed). The
figures are for the time in which all streams run: the gaps between tokens in all of it, the gaps
while a long prompt waited for its first token, and the TTFT of the long prompts. As a warm-up, the
streams and one long prompt run once before.

    python -m bench.interference --setup split:1+3 --setup colocated:4
    python -m bench.interference --url http://127.0.0.1:8000 --vocab 248000

JSON on stdout. Exit code: 0, 1 when a request failed or nothing was disturbed, 2 could not measure.
"""

import asyncio
import json
import random
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import typer
from tokenizers import Tokenizer

from bench import environment, result_file, stack
from bench.environment import ROOT
from bench.harness.cannot_measure import CannotMeasure
from bench.harness.client.asking import Ask, completion
from bench.harness.client.client import Client
from bench.harness.client.endpoint import endpoint
from bench.harness.client.record import Record
from bench.harness.server_info import ask_server
from bench.setups import Setup
from bench.token_gaps import NotMeasured, figures


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

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if name != "seed" and value <= 0:
                raise ValueError(f"{name}: {value} is not positive")


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
    setup: Annotated[
        list[str] | None,
        typer.Option(help="split:P+D or colocated:N, started here; several times."),
    ] = None,
    url: Annotated[str | None, typer.Option(help="Or a server that runs.")] = None,
    model: Annotated[Path, typer.Option(help="Checkpoint folder.")] = ROOT / "models" / "tiny",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    load_format: Annotated[str, typer.Option(help="auto, or dummy: random weights.")] = "auto",
    vocab: Annotated[int, typer.Option(help="Ids are below this; 0: the folder's tokenizer.")] = 0,
    streams: Annotated[int, typer.Option(help="Steady streams.")] = 8,
    stream_prompt: Annotated[int, typer.Option(help="Tokens of their prompts.")] = 64,
    stream_tokens: Annotated[int, typer.Option(help="Tokens they go on for.")] = 400,
    arrivals: Annotated[int, typer.Option(help="Long prompts, at most.")] = 20,
    arrival_prompt: Annotated[int, typer.Option(help="Tokens of each.")] = 1024,
    arrival_tokens: Annotated[int, typer.Option(help="Tokens they go on for.")] = 1,
    every: Annotated[float, typer.Option(help="Seconds from one to the next.")] = 0.25,
    seed: Annotated[int, typer.Option(help="Of prompts and their ids.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Also write the result there.")] = None,
) -> None:
    """Measure the gaps between tokens, without and with long prompts arriving."""
    try:
        if (url is None) == (setup is None):
            raise ValueError("--setup or --url: give one of them")
        ids = vocab or Tokenizer.from_file(str(model / "tokenizer.json")).get_vocab_size()
        load = Load(
            streams, stream_prompt, stream_tokens, arrivals, arrival_prompt, arrival_tokens,
            every, ids, seed,
        )  # fmt: skip
        results = {}
        if url is not None:
            results[url] = asyncio.run(measure(url, load))
        for each in setup or ():
            arguments = [*Setup.parse(each).arguments(), "--load-format", load_format]
            with stack.running(model, *arguments, device=device) as served:
                results[each] = asyncio.run(measure(served.url, load))
    except (ValueError, NotMeasured, stack.StackFailed, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    document = result_file.document(
        "interference",
        environment=environment.describe(sys.argv[1:], "bench.interference"),
        settings=asdict(load),
        results=results,
        problems=[problem for name, found in results.items() for problem in problems(name, found)],
    )
    if out is not None:
        result_file.save(out, document)
    typer.echo(json.dumps(document, indent=1))
    raise typer.Exit(0 if document["ok"] else 1)


def problems(name: str, found: dict[str, Any]) -> list[str]:
    """Why the figures of one set-up do not count."""
    failed = [f"{name}: a long prompt failed: {why}" for why in found["arrivals"]["failed"]]
    if not found["arrivals"]["within_steady"]:
        failed.append(f"{name}: no long prompt came while all streams ran")
    return failed


if __name__ == "__main__":
    typer.run(main)
