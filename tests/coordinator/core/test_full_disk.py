"""The disk of our own Redis is full: requests are served, and their records follow later."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import httpx
import pytest
from redis import Redis
from redis.exceptions import ResponseError

from coordinator.core.contract import SequenceRequest
from coordinator.core.hub import Hub
from coordinator.core.observer import Observer
from coordinator.core.settings import PlacementLimits
from coordinator.record.store import Store
from telemetry.metrics import Metrics
from tests.coordinator.core.test_hub import EXPORT, FAST
from tests.coordinator.stores import FAST as STORE
from tests.coordinator.stores import eventually, stored
from tests.local_redis import LocalRedis
from tests.small_disk import fill, small_disk
from transport.wire.messages import Hello, Prefilled, TokenOut
from transport.wire.sampling import SamplingParams, StopRule
from transport.wire.token_ids import packed


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "run", "256k") as folder:
        yield folder


@pytest.fixture
def server(disk: Path) -> Iterator[LocalRedis]:
    local = LocalRedis(disk, keep_data=True)
    local.start()
    yield local
    local.stop()


@pytest.fixture
async def store(server: LocalRedis) -> AsyncIterator[Store]:
    store = Store(server.url, "c1", "baton/1", limits=replace(STORE, call_timeout_s=2.0))
    await store.start()
    yield store
    await store.close(1.0)


class Site:
    """A hub with one worker that answers each request by one token."""

    def __init__(self, store: Store) -> None:
        channel = Mock()
        self.metrics = Metrics("m")
        self.observer = Observer(self.metrics, store, "c1")
        self.hub = Hub(channel, self.observer, "c1", FAST, PlacementLimits())
        self.hub._inbox.handle("b-1", Hello("b-1", "colocated", "m", "cpu", 1, 128, 8, EXPORT))

    async def serve(self, request_id: str) -> None:
        request = SequenceRequest(request_id, packed((1, 2)), SamplingParams(), StopRule(1))
        stream = self.hub.submit(request)
        token = TokenOut(request_id, 1, 0, 7, finish="length")
        self.hub._inbox.handle("b-1", Prefilled(token, None, 1.0, 2.0))
        assert [token.token_id async for token in stream] == [7]
        await self.hub.recorded([request_id])

    @property
    def redis_connected(self) -> str:
        """As a scrape would read it."""
        self.observer.tick(self.hub.status(), 0, 0)
        return self.metrics.render().decode().partition("\nbaton_redis_connected ")[2][:3]


async def test_requests_are_served_and_their_records_follow_when_there_is_room(
    disk: Path,
    server: LocalRedis,
    store: Store,
    client_of: Callable[..., httpx.AsyncClient],
    caplog: pytest.LogCaptureFixture,
) -> None:
    site = Site(store)
    client = client_of(site.hub)
    await site.serve("before")
    fill(disk / "others", leaving_bytes=0)
    served = ["before"]
    async with asyncio.timeout(10.0):
        while store.connected or len(served) < 20:
            served.append(f"full-{len(served)}")
            await site.serve(served[-1])
            await asyncio.sleep(0.005)  # Redis may notice late; the store keeps so many records
    ready = await client.get("/ready")
    assert ready.status_code == 200, "without its record it serves"
    assert (ready.json()["redis_connected"], site.redis_connected) == (False, "0.0")
    with Redis.from_url(server.url, decode_responses=True) as redis:
        with pytest.raises(ResponseError, match="MISCONF"):
            redis.set("a", "1")
        assert stored(redis, served[-1]) is None
        (warned,) = (r for r in caplog.records if "lags behind" in r.message)
        assert "MISCONF" in warned.message
        own = await store.get(served[-1])
        assert own is not None
        assert own.state == "finished", "what Redis has not heard is still told"

        (disk / "others").unlink()
        await eventually(lambda: store.connected and store.num_unwritten == 0)
    assert (store.dropped, site.redis_connected) == (0, "1.0")
    assert (await client.get("/ready")).json()["redis_connected"] is True
    await store.close(1.0)
    os.kill(server.pid, signal.SIGKILL)
    server.stop()
    successor = LocalRedis(disk)
    successor.start()
    with Redis.from_url(successor.url, decode_responses=True) as redis:
        records = [stored(redis, request_id) for request_id in served]
    successor.stop()
    assert {record and record.state for record in records} == {"finished"}, "the file is whole"
