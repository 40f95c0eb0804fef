"""The store while Redis stalls, dies, comes back empty, refuses, or is not there."""

import asyncio
import itertools
import os
import signal
import socket
import time
from pathlib import Path

import pytest
from redis import Redis

from coordinator.record import keys
from coordinator.record.redis_link import RedisUnavailable
from coordinator.record.settings import StoreLimits
from coordinator.record.store import Store
from tests.coordinator.histories import advance
from tests.coordinator.stores import (
    FAST,
    MakeStore,
    eventually,
    limits,
    new,
    slow_way,
    stored,
)
from tests.local_redis import LocalRedis

START_S = 4.0
"""How long a start waits for Redis: for longer than a busy machine may stand still."""


async def test_a_stalled_server_slows_no_caller(
    server: LocalRedis, redis: Redis, make_store: MakeStore
) -> None:
    store = await make_store(limits=limits(call_timeout_s=3.0))
    os.kill(server.pid, signal.SIGSTOP)
    took_s, final = [], {}
    until = time.monotonic() + 3.9
    for n in itertools.count():
        record = advance(new(f"r{n % 200}", attempt=1 + n // 200), "decoding", num_output=n)
        began = time.perf_counter()
        store.put(record)
        took_s.append(time.perf_counter() - began)
        final[record.request_id] = record
        if n % 50 == 0:
            turn = time.perf_counter()
            await asyncio.sleep(0)
            took_s.append(time.perf_counter() - turn)
        if time.monotonic() > until:
            break
    assert sorted(took_s)[len(took_s) * 99 // 100] < 0.001
    assert max(took_s) < 2.7  # had anything waited for Redis, it would be the call's 3.0
    await eventually(lambda: not store.connected)
    with pytest.raises(RedisUnavailable, match="did not answer"):
        await store.get("somebody else's")
    os.kill(server.pid, signal.SIGCONT)
    await eventually(lambda: store.connected and store.num_unwritten == 0)
    await eventually(lambda: all(stored(redis, name) == last for name, last in final.items()))
    assert store.counters.failures >= 1
    assert store.counters.reconnects >= 1
    assert store.dropped == 0


@pytest.mark.parametrize("loses", ["everything", "its last writes"])
async def test_a_server_that_comes_back_is_told_what_it_lost(tmp_path: Path, loses: str) -> None:
    first = LocalRedis(tmp_path / "run", keep_data=loses != "everything")
    first.start()
    store = Store(first.url, "c1", "baton/1", limits=FAST)
    await store.start()
    store.register_worker("d1", {"role": "decode"})
    old, live = new("old", state="finished"), new("live", state="decoding")
    store.put(old)
    store.put(live)
    await eventually(lambda: store.counters.writes == 2)

    if loses == "everything":
        os.kill(first.pid, signal.SIGKILL)
    else:  # it still knows the coordinator
        with Redis.from_url(first.url) as redis:
            redis.delete(keys.request("old"), keys.request("live"), keys.open_requests("c1"))
    first.stop()
    during = [new("meanwhile"), advance(live, "decoding", num_output=5)]
    for record in during:
        store.put(record)
    await eventually(lambda: not store.connected)
    again = LocalRedis(tmp_path / "run")
    again.start()
    try:
        with Redis.from_url(again.url, decode_responses=True) as redis:
            for record in (old, *during):
                await eventually(lambda r=record: stored(redis, r.request_id) == r)
            await eventually(lambda: redis.exists(keys.worker("d1"), keys.coordinator("c1")) == 2)
            assert redis.smembers(keys.open_requests("c1")) == {"live", "meanwhile"}
            await eventually(lambda: store.connected)
            assert (store.counters.rewrites, store.dropped) == (1, 0)
            await store.close(1.0)
    finally:
        again.stop()


async def test_a_flushed_server_is_noticed_by_the_next_write(
    redis: Redis, make_store: MakeStore
) -> None:
    store = await make_store(limits=limits(heartbeat_s=60.0))
    store.put(new("first"))
    await eventually(lambda: stored(redis, "first"))
    redis.flushall()
    redis.script_flush()
    store.put(new("second"))
    await eventually(lambda: stored(redis, "first") and stored(redis, "second"))
    assert (store.counters.rewrites, store.counters.failures) == (1, 0)


async def test_a_server_that_refuses_is_tried_again(redis: Redis, make_store: MakeStore) -> None:
    store = await make_store()
    redis.config_set("maxmemory", "1")
    store.put(new())
    await eventually(lambda: not store.connected)
    redis.config_set("maxmemory", "0")
    await eventually(lambda: stored(redis, "r1") == new())
    await eventually(lambda: store.connected)


async def test_a_backlog_delays_no_heartbeat(
    server: LocalRedis, redis: Redis, tmp_path: Path
) -> None:
    async with slow_way(server, tmp_path / "slow", 0.06) as url:
        few = limits(call_timeout_s=6.0, presence_ttl_s=3.0, heartbeat_s=0.3, max_batch=8)
        store = Store(url, "c1", "baton/1", limits=few)
        await store.start()
        store.register_worker("d1", {"role": "decode"})
        alive = keys.coordinator("c1"), keys.worker("d1")
        await eventually(lambda: redis.exists(*alive) == 2)
        for n in range(80 * few.max_batch):
            store.put(new(f"r{n}"))
        lapsed = 0

        def written() -> bool:
            nonlocal lapsed
            lapsed += redis.exists(*alive) < 2
            return store.num_unwritten == 0

        await eventually(written, deadline_s=60.0)
        assert (lapsed, store.counters.rewrites) == (0, 0)
        await store.close(2.0)


async def test_close_without_a_server_ends_in_time(
    server: LocalRedis, make_store: MakeStore, caplog: pytest.LogCaptureFixture
) -> None:
    store = await make_store()
    os.kill(server.pid, signal.SIGSTOP)
    store.put(new())
    began = time.monotonic()
    await store.close(1.0)
    os.kill(server.pid, signal.SIGCONT)
    assert time.monotonic() - began < 5.0
    assert "1 records unwritten" in caplog.text


async def start_fails(url: str) -> str:
    waits = StoreLimits(start_timeout_s=START_S, call_timeout_s=2 * START_S)
    store = Store(url, "c1", "baton/1", limits=waits)
    began = time.monotonic()
    with pytest.raises(RedisUnavailable) as caught:
        await store.start()
    assert time.monotonic() - began < 1.8 * START_S
    assert caught.value.__cause__ is None
    return str(caught.value)


async def test_no_server_listens(tmp_path: Path) -> None:
    assert f"unix://{tmp_path}/none" in await start_fails(f"unix://{tmp_path}/none")
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{bound.getsockname()[1]}"
        said = await start_fails(f"redis://me:s3cret@{host}/0")
    assert f"redis://***@{host}/0" in said
    assert "s3cret" not in said


async def test_a_server_that_says_nothing() -> None:
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        host = f"127.0.0.1:{mute.getsockname()[1]}"
        said = await start_fails(f"redis://:s3cret@{host}")
    assert f"redis://***@{host} did not answer within {START_S} s" in said


async def test_a_wrong_password(server: LocalRedis, redis: Redis) -> None:
    redis.config_set("requirepass", "right")
    for credentials in ("", ":s3cret@"):
        began = time.monotonic()
        said = await start_fails(server.url.replace("unix://", f"unix://{credentials}"))
        assert time.monotonic() - began < 0.8 * START_S  # not again until the deadline
        assert "s3cret" not in said
        assert "redis.sock" in said
    store = Store(server.url.replace("unix://", "unix://:right@"), "c1", "baton/1")
    await store.start()
    await store.close(1.0)


async def test_without_redis_the_last_requests_are_unknown(
    server: LocalRedis, make_store: MakeStore
) -> None:
    store = await make_store()
    store.put(new(received_at=1.0))
    server.stop()
    assert (await store.get("r1")) is not None
    with pytest.raises(RedisUnavailable):
        await store.recent(3)
    with pytest.raises(RedisUnavailable):
        await store.get("another's")
