"""What runs beside the bad requests of bench.bad_input: answers to ``/ping``, and streams."""

import asyncio
import http.client
import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from urllib.parse import urlsplit

import httpx

_PING_EVERY_S = 0.005
_PING_S = 60.0


@contextmanager
def pinging(url: str) -> Iterator[list[tuple[float, float]]]:
    """Ask for ``/ping`` every few milliseconds, in a process of its own. The list is filled when
    the context is left: (at, took) in seconds of each answer. Raises OSError where one did not come
    within ``_PING_S``, or the process ended."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_ping, args=(url, theirs), daemon=True)
    process.start()
    theirs.close()
    found: list[tuple[float, float]] = []
    try:
        yield found
        found += _told(ours)
    finally:
        process.kill()
        process.join(10)


def _told(process: Connection) -> list[tuple[float, float]]:
    try:
        process.send(None)
        if not process.poll(2 * _PING_S):
            raise TimeoutError(f"nothing is told of /ping, {2 * _PING_S:g} s after the end")
        found: list[tuple[float, float]] = process.recv()
    except (EOFError, ConnectionError) as error:
        raise ConnectionError(f"the process that asks for /ping has ended: {error!r}") from None
    return found


def _ping(url: str, told: Connection) -> None:
    """In a process of its own: (at, took) in seconds of each answer, sent when it is asked for."""
    where = urlsplit(url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=_PING_S)
    found: list[tuple[float, float]] = []
    while not told.poll(_PING_EVERY_S):
        began = time.monotonic()
        connection.request("GET", "/ping")
        connection.getresponse().read()
        found.append((began, time.monotonic() - began))
    told.send(found)


class Streams:
    """Completions that run one after the other, several at a time, until they are told to end."""

    def __init__(self, client: httpx.AsyncClient, num: int) -> None:
        self.num_failed = self.num_ended = 0
        self._client = client
        self._ending = False
        self._gaps: list[tuple[float, float]] = []
        self._tasks = [asyncio.create_task(self._run(i)) for i in range(num)]

    async def end(self) -> list[tuple[float, float]]:
        """The gaps between chunks, as (from, to)."""
        self._ending = True
        await asyncio.gather(*self._tasks)
        return self._gaps

    async def _run(self, number: int) -> None:
        body = {"prompt": [40 + number] * 8, "max_tokens": 200, "ignore_eos": True, "stream": True}
        while not self._ending:
            last, done = time.monotonic(), False
            async with self._client.stream("POST", "/v1/completions", json=body) as response:
                async for line in response.aiter_lines():
                    done = done or line == "data: [DONE]"
                    if line.startswith("data: {"):
                        self._gaps.append((last, time.monotonic()))
                        last = time.monotonic()
            self.num_ended += 1
            self.num_failed += not done
