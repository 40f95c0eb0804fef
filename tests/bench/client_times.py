"""``python -m tests.bench.client_times``: how late the client of bench stamps arrivals of tokens,
and how late aiohttp and httpx would.

A server in a process of its own writes an event to each of 64 streams at once every 20 ms, as the
end of a decode step does. An event has the time at which it was written, so a client's stamp less
that time is the client's delay. The clients are measured in turn, on uvloop as in ``baton bench``.
The round with the lowest p99 counts for each: other work on the machine disturbed it least.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from time import perf_counter, process_time
from typing import Annotated, Any

import aiohttp
import httpx
import typer
import uvloop

from bench import result_file
from bench.environment import describe
from bench.harness.client.asking import COMPLETIONS, completion
from bench.harness.client.client import Client
from bench.harness.client.endpoint import endpoint
from bench.harness.client.events import events
from bench.measures import spread_ms
from tests.bench.raw_server import HEAD, chunk

STREAMS, EVENTS, EVERY_S = 64, 150, 0.02
EVENT = b'data: {"written_at_s":%.7f,"choices":[{"index":0,"text":" word","token_ids":[1234]}]}\n\n'
Pieces = list[tuple[float, bytes]]
Stamped = Callable[[str], Awaitable[list[Pieces]]]


async def serve() -> None:
    """Print the port; events begin once all streams have been asked for."""
    asked: list[asyncio.StreamWriter] = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        await reader.readexactly(length)
        writer.write(HEAD)
        asked.append(writer)
        if len(asked) == STREAMS:
            await write_events(asked[:])
            asked.clear()

    server = await asyncio.start_server(connected, "127.0.0.1", 0, backlog=2 * STREAMS)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def write_events(streams: list[asyncio.StreamWriter]) -> None:
    begin_s = perf_counter() + 10 * EVERY_S
    for number in range(EVENTS):
        await asyncio.sleep(max(0.0, begin_s + number * EVERY_S - perf_counter()))
        for stream in streams:
            stream.write(chunk(EVENT % perf_counter()))
    for stream in streams:
        stream.write(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
        stream.close()


async def ours(url: str) -> list[Pieces]:
    async with Client(endpoint(url)) as client:
        asks = [completion("m", "a") for _ in range(STREAMS)]
        return [e.pieces for e in await asyncio.gather(*map(client.exchange, asks))]


async def by_aiohttp(url: str) -> list[Pieces]:
    async def one(session: aiohttp.ClientSession) -> Pieces:
        async with session.post(url + COMPLETIONS, json={"stream": True}) as response:
            return [(perf_counter(), data) async for data in response.content.iter_any()]

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        return await asyncio.gather(*(one(session) for _ in range(STREAMS)))


async def by_httpx(url: str) -> list[Pieces]:
    async def one(client: httpx.AsyncClient) -> Pieces:
        async with client.stream("POST", url + COMPLETIONS, json={"stream": True}) as response:
            return [(perf_counter(), data) async for data in response.aiter_raw()]

    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(limits=limits, timeout=60) as client:
        return await asyncio.gather(*(one(client) for _ in range(STREAMS)))


def delays_s(pieces: Pieces) -> Iterator[float]:
    for event in events(pieces):
        if event.data != b"[DONE]":
            yield event.at_s - float(json.loads(event.data)["written_at_s"])


def measure(url: str, stamped: Stamped) -> dict[str, Any]:
    began_s = process_time()
    streams = uvloop.run(stamped(url))  # type: ignore[arg-type]
    cpu_s = process_time() - began_s
    spread = spread_ms([delay for pieces in streams for delay in delays_s(pieces)])
    return {**(spread or {}), "cpu_s": cpu_s}


CLIENTS: dict[str, Stamped] = {"bench": ours, "aiohttp": by_aiohttp, "httpx": by_httpx}


def main(
    rounds: Annotated[int, typer.Option(help="Each client in turn, so often.")] = 20,
    out: Annotated[Path | None, typer.Option(help="Where the result goes.")] = None,
) -> None:
    """Print the delays of the best round of each client, in ms."""
    command = [sys.executable, "-m", "tests.bench.client_times", "serve"]
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in CLIENTS}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = f"http://127.0.0.1:{int(server.stdout.readline())}"
        for _ in range(rounds):
            for name, stamped in CLIENTS.items():
                found[name].append(measure(url, stamped))
        server.kill()
    best = {name: min(runs, key=lambda run: float(run["p99"])) for name, runs in found.items()}
    for name, figures in best.items():
        print(f"{name:8s} " + ", ".join(f"{key} {value:.3f}" for key, value in figures.items()))
    if out is not None:
        where = describe(sys.argv[1:], "tests.bench.client_times")
        settings = {"streams": STREAMS, "events": EVENTS, "every_s": EVERY_S, "rounds": rounds}
        versions = {"aiohttp": aiohttp.__version__, "httpx": httpx.__version__}
        results = {"best": best, "rounds": found, "versions": versions}
        result_file.write(out, result_file.document(
            "client-times", environment=where, server={}, settings=settings, results=results,
        ))  # fmt: skip


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        uvloop.run(serve())
    else:
        typer.run(main)
