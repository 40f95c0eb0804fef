"""Stores for tests, and what Redis holds of theirs."""

import asyncio
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from redis import Redis

from coordinator.record import keys
from coordinator.record.record import RequestRecord
from coordinator.record.settings import StoreLimits
from coordinator.record.store import Store
from tests.local_redis import LocalRedis

FAST = StoreLimits(
    call_timeout_s=0.3, heartbeat_s=0.1, presence_ttl_s=5.0, backoff_min_s=0.02, backoff_max_s=0.1
)


MakeStore = Callable[..., Awaitable[Store]]


async def eventually(
    condition: Callable[[], Any], deadline_s: float = 5.0, *, every_s: float = 0.005
) -> None:
    """Redis does not report writes, so this asks again and again."""
    async with asyncio.timeout(deadline_s):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(every_s)


def new(request_id: str = "r1", coordinator: str = "c1", **fields: Any) -> RequestRecord:
    return RequestRecord(request_id=request_id, coordinator=coordinator, **fields)


def stored(redis: Redis, request_id: str) -> RequestRecord | None:
    fields: Any = redis.hgetall(keys.request(request_id))
    return RequestRecord.from_fields(fields) if fields else None


@asynccontextmanager
async def slow_way(server: LocalRedis, socket_path: Path, delay_s: float) -> AsyncIterator[str]:
    """A URL at which the server hears everything ``delay_s`` late."""

    async def relay(reader: StreamReader, writer: StreamWriter, delay_s: float) -> None:
        while some := await reader.read(1 << 20):
            await asyncio.sleep(delay_s)
            writer.write(some)
        writer.close()

    async def connect(reader: StreamReader, writer: StreamWriter) -> None:
        replies, calls = await asyncio.open_unix_connection(server.url.removeprefix("unix://"))
        await asyncio.gather(relay(reader, calls, delay_s), relay(replies, writer, 0.0))

    async with await asyncio.start_unix_server(connect, socket_path):
        yield f"unix://{socket_path}"


def abandon(store: Store) -> None:
    """End a store as kill -9 would: it writes nothing any more."""

    async def nothing(commands: Any) -> Any:
        await asyncio.Event().wait()

    assert store._writer._task is not None
    store._writer._link._pipeline = nothing  # a cancellation may get lost in redis-py
    store._writer._task.cancel()


def limits(**changes: Any) -> StoreLimits:
    return replace(FAST, **changes)
