"""Requests for callers that cannot go on without an answer: a failed request raises."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from bench.harness.client.asking import COMPLETIONS, Ask
from bench.harness.client.client import Client
from bench.harness.client.endpoint import Deadlines, endpoint
from bench.harness.client.record import Record


class RequestFailed(Exception):
    """The response is not a complete completion; the message says what came instead."""


async def complete(client: Client, **body: Any) -> Record:
    """Send one streamed request to /v1/completions; raises RequestFailed."""
    stream = {"stream": True, "stream_options": {"include_usage": True}}
    record = await client.send(Ask(COMPLETIONS, msgspec.json.encode({**body, **stream}), True))
    if record.failure is not None:
        raise RequestFailed(f"{record.failure}: {record.detail}")
    return record


async def get(client: Client, path: str) -> str:
    """The text at ``path``; raises RequestFailed."""
    exchange = await client.get(path)
    if exchange.failure is not None or exchange.status != 200:
        why = exchange.failure or f"HTTP {exchange.status}"
        raise RequestFailed(f"{path}: {why}: {exchange.detail or exchange.body[:300]!r}")
    return exchange.body.decode()


async def status(url: str, path: str, *, within_s: float) -> int | None:
    """The HTTP status of ``path``; None without an answer."""
    deadlines = Deadlines(within_s, within_s, within_s, within_s)
    async with Client(endpoint(url), deadlines) as client:
        exchange = await client.get(path)
    return None if exchange.failure is not None else exchange.status


async def one_by_one(url: str, bodies: Sequence[Mapping[str, Any]]) -> list[Record]:
    """Send requests one after another, over one connection. Raises RequestFailed."""
    async with Client(endpoint(url)) as client:
        return [await complete(client, **body) for body in bodies]


async def at_once(
    url: str, bodies: Sequence[Mapping[str, Any]], concurrency: int | None = None
) -> list[Record]:
    """Send requests in order, ``concurrency`` at a time (default: all). Raises RequestFailed."""
    room = asyncio.Semaphore(concurrency or max(1, len(bodies)))
    async with Client(endpoint(url)) as client:

        async def one(body: Mapping[str, Any]) -> Record:
            async with room:
                return await complete(client, **body)

        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(one(body)) for body in bodies]
    return [task.result() for task in running]
