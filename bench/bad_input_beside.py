"""What runs beside the bad requests of bench.bad_input: answers to ``/ping``, and streams."""

import asyncio
import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from multiprocessing.connection import Connection

from bench.harness.client.asking import COMPLETIONS, Ask
from bench.harness.client.client import Client
from bench.harness.client.endpoint import Deadlines, endpoint
from bench.harness.client.record import Record

_PING_EVERY_S = 0.005
_PING = Deadlines(connect_s=60.0, first_byte_s=60.0, stall_s=60.0, total_s=60.0)
_BODY = (
    b'{"prompt": [%d, 1, 2, 3, 4, 5, 6, 7], "max_tokens": 200, "ignore_eos": true, "stream": true}'
)


@contextmanager
def pinging(url: str) -> Iterator[list[tuple[float, float]]]:
    """Ask for ``/ping`` every few milliseconds, in a process of its own.

    The list is filled when the context is left: (at, took) of each answer, in seconds of
    ``perf_counter``, which all processes of a machine share. Raises ConnectionError if one answer
    did not come in time, TimeoutError if the process does not tell its answers.
    """
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_ping_until_told, args=(url, theirs), daemon=True)
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
        if not process.poll(2 * _PING.total_s):
            raise TimeoutError(f"no times of /ping came, {2 * _PING.total_s:g} s after the end")
        found: list[tuple[float, float]] = process.recv()
    except (EOFError, ConnectionError) as error:
        raise ConnectionError(f"the process that asks for /ping has ended: {error!r}") from None
    return found


def _ping_until_told(url: str, told: Connection) -> None:
    told.send(asyncio.run(_ping(url, told)))


async def _ping(url: str, told: Connection) -> list[tuple[float, float]]:
    """(at, took) of each answer until ``told`` has something to read."""
    over = asyncio.Event()
    asyncio.get_running_loop().add_reader(told.fileno(), over.set)
    found = []
    async with Client(endpoint(url), _PING) as client:
        while not over.is_set():
            answer = await client.get("/ping")
            if answer.failure is not None or answer.done_at_s is None:
                raise ConnectionError(f"/ping: {answer.failure}: {answer.detail}")
            found.append((answer.due_at_s, answer.done_at_s - answer.due_at_s))
            with suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), _PING_EVERY_S)
    return found


class Streams:
    """Completions that run one after the other, several at a time, until they are told to end."""

    def __init__(self, client: Client, num: int) -> None:
        self.num_failed = self.num_ended = 0
        self._client = client
        self._ending = False
        self._gaps: list[tuple[float, float]] = []
        self._tasks = [asyncio.create_task(self._run(i)) for i in range(num)]

    async def end(self) -> list[tuple[float, float]]:
        """The gaps between arrivals, as (from, to); the first one begins with the request."""
        self._ending = True
        await asyncio.gather(*self._tasks)
        return self._gaps

    async def _run(self, number: int) -> None:
        ask = Ask(COMPLETIONS, _BODY % (40 + number), stream=True)
        while not self._ending:
            record = await self._client.send(ask)
            self._gaps += _gaps(record)
            self.num_ended += 1
            self.num_failed += not record.ok


def _gaps(record: Record) -> list[tuple[float, float]]:
    times = [record.due_at_s, *(arrival.at_s for arrival in record.arrivals)]
    return list(pairwise(times))
