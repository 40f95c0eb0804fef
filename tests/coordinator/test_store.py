"""The store against a real Redis: that stalls, dies, comes back empty, or never was there."""

import asyncio
import itertools
import os
import random
import signal
import socket
import time
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis import Redis

from coordinator.record import keys, scripts
from coordinator.record.presence import ProtocolConflict
from coordinator.record.record import RequestRecord
from coordinator.record.redis_link import RedisUnavailable
from coordinator.record.redis_url import safe_url
from coordinator.record.store import Store
from coordinator.record.store_limits import StoreLimits
from tests.coordinator.histories import advance, again, latest
from tests.coordinator.redis_scripts import load, run
from tests.local_redis import LocalRedis

FAST = StoreLimits(
    call_timeout_s=0.3, heartbeat_s=0.1, presence_ttl_s=5.0, backoff_min_s=0.02, backoff_max_s=0.1
)
MakeStore = Callable[..., Awaitable[Store]]


@pytest.fixture
async def make_store(server: LocalRedis) -> AsyncIterator[MakeStore]:
    made: list[Store] = []

    async def make(instance: str = "c1", protocol: str = "baton/1", **options: Any) -> Store:
        options.setdefault("limits", FAST)
        store = Store(server.url, instance, protocol, **options)
        await store.start()
        made.append(store)
        return store

    yield make
    for store in made:
        await store.close(1.0)


async def eventually(
    condition: Callable[[], Any], deadline_s: float = 5.0, *, every_s: float = 0.005
) -> None:
    """Redis tells nobody what was written to it, so here we have to look again and again."""
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


async def test_a_request_from_queued_to_finished(redis: Redis, make_store: MakeStore) -> None:
    store = await make_store(endpoint="http://here")
    record = new(http_id="from-client", num_prompt=3, received_at=1.25)
    store.put(record)
    await eventually(lambda: stored(redis, "r1") == record)
    assert redis.smembers(keys.open_requests("c1")) == {"r1"}
    assert 0 < redis.ttl(keys.request("r1")) <= keys.OPEN_TTL_S
    assert redis.ttl(keys.request("r1")) > keys.ENDED_TTL_S

    done = advance(
        advance(record, "decoding", decode_worker="d1"), "finished", finish_reason="stop"
    )
    store.put(done)
    store.put(record)
    await eventually(lambda: stored(redis, "r1") == done)
    assert redis.exists(keys.open_requests("c1")) == 0
    assert 0 < redis.ttl(keys.request("r1")) <= keys.ENDED_TTL_S
    assert await store.get("r1") == done
    assert await (await make_store("c2")).get("r1") == done
    assert await store.get("unknown") is None
    assert (store.connected, store.counters.failures, store.dropped) == (True, 0, 0)
    assert redis.hgetall(keys.coordinator("c1"))["endpoint"] == "http://here"


async def test_a_burst_is_written_in_few_batches(redis: Redis, make_store: MakeStore) -> None:
    store = await make_store()
    before = redis.info("commandstats")["cmdstat_evalsha"]["calls"]
    record = new()
    for num_output in range(1, 500):
        record = advance(record, "decoding", num_output=num_output)
        store.put(record)
    await eventually(lambda: stored(redis, "r1") == record)
    assert redis.info("commandstats")["cmdstat_evalsha"]["calls"] - before < 20


async def test_workers_live_as_long_as_they_are_refreshed(
    redis: Redis, make_store: MakeStore
) -> None:
    store = await make_store(limits=limits(presence_ttl_s=1.0))
    store.register_worker("p1", {"role": "prefill", "device": "cpu"})
    await eventually(lambda: redis.exists(keys.worker("p1")))
    expected = {"role": "prefill", "device": "cpu", "coordinator": "c1"}
    assert redis.hgetall(keys.worker("p1")) == expected
    seen_until = time.monotonic() + 1.3
    await eventually(lambda: time.monotonic() > seen_until or not redis.exists(keys.worker("p1")))
    assert redis.exists(keys.worker("p1"), keys.coordinator("c1")) == 2
    store.worker_gone("p1")
    await eventually(lambda: not redis.exists(keys.worker("p1")))

    store.register_worker("p2", {"role": "prefill"})
    await eventually(lambda: redis.exists(keys.worker("p2")))
    abandon(store)
    await eventually(lambda: not redis.exists(keys.worker("p2"), keys.coordinator("c1")))


async def test_close_writes_the_rest_and_takes_its_keys(
    redis: Redis, make_store: MakeStore
) -> None:
    store = await make_store()
    store.register_worker("p1", {"role": "prefill"})
    done = advance(new(), "finished")
    store.put(done)
    await store.close(2.0)
    assert stored(redis, "r1") == done
    assert redis.keys("*") == [keys.request("r1")]
    assert not store.connected


# ---- faults


async def test_a_stalled_server_slows_nobody(
    server: LocalRedis, redis: Redis, make_store: MakeStore
) -> None:
    store = await make_store(limits=limits(call_timeout_s=1.0))
    os.kill(server.pid, signal.SIGSTOP)
    took_s, final = [], {}
    until = time.monotonic() + 1.3
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
    assert max(took_s) < 0.9  # had anything waited for Redis, it would be the call's 1.0
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


async def test_a_backlog_keeps_nobody_from_living(
    server: LocalRedis, redis: Redis, tmp_path: Path
) -> None:
    async with slow_way(server, tmp_path / "slow", 0.02) as url:
        few = limits(call_timeout_s=2.0, presence_ttl_s=1.0, heartbeat_s=0.3, max_batch=8)
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

        await eventually(written, deadline_s=20.0)
        assert (lapsed, store.counters.rewrites) == (0, 0)
        await store.close(2.0)


async def test_close_without_a_server_ends_in_time(
    server: LocalRedis, make_store: MakeStore, caplog: pytest.LogCaptureFixture
) -> None:
    store = await make_store()
    os.kill(server.pid, signal.SIGSTOP)
    store.put(new())
    began = time.monotonic()
    await store.close(0.2)
    os.kill(server.pid, signal.SIGCONT)
    assert time.monotonic() - began < 1.0
    assert "1 records unwritten" in caplog.text


# ---- other coordinators


async def test_what_the_dead_left_open_fails_once(redis: Redis, make_store: MakeStore) -> None:
    dead = await make_store("dead", limits=limits(heartbeat_s=60.0))
    left = [advance(new(f"r{n}", "dead", attempt=2), "decoding") for n in range(150)]
    for record in [*left, new("done", "dead", state="finished")]:
        dead.put(record)
    await eventually(lambda: dead.counters.writes == 151)
    abandon(dead)
    redis.delete(keys.coordinator("dead"))

    heirs = await asyncio.gather(make_store("c2"), make_store("c3"))
    await eventually(lambda: sum(heir.counters.lost_failed for heir in heirs) == 150)
    failed = stored(redis, "r149")
    assert failed is not None
    assert (failed.state, failed.failure_code) == ("failed", "coordinator_lost")
    assert "coordinator dead" in failed.failure_message
    assert failed.ended_at == pytest.approx(time.time(), abs=60)
    assert (failed.order[1:10], failed.ended) == ("000000002", True)
    assert failed.order == redis.hget(keys.request("r149"), "order")
    assert 0 < redis.ttl(keys.request("r149")) <= keys.ENDED_TTL_S
    assert stored(redis, "done") == new("done", "dead", state="finished")
    assert redis.exists(keys.open_requests("dead")) == 0
    assert redis.smembers(keys.COORDINATORS) == {"c2", "c3"}
    late = await make_store("c4")
    assert late.counters.lost_failed == 0


async def test_what_the_dead_left_open_delays_neither_start_nor_heartbeat(
    server: LocalRedis, redis: Redis, make_store: MakeStore, tmp_path: Path
) -> None:
    dead = await make_store("dead", limits=limits(heartbeat_s=60.0))
    for n in range(640):
        dead.put(new(f"r{n}", "dead"))
    await eventually(lambda: dead.counters.writes == 640)
    abandon(dead)
    redis.delete(keys.coordinator("dead"))

    async with slow_way(server, tmp_path / "slow", 0.02) as url:
        few = limits(
            call_timeout_s=2.0,
            start_timeout_s=0.8,
            presence_ttl_s=1.0,
            heartbeat_s=0.3,
            max_batch=8,
        )
        heir = Store(url, "heir", "baton/1", limits=few)
        await heir.start()
        heir.put(new("meanwhile", "heir"))
        await eventually(lambda: stored(redis, "meanwhile"))
        assert heir.counters.lost_failed < 640, "clearing up holds up no record"
        await eventually(lambda: heir.counters.lost_failed == 640, deadline_s=20.0)
        await eventually(lambda: redis.smembers(keys.COORDINATORS) == {"heir"})
        assert heir.counters.rewrites == 0
        await heir.close(2.0)


async def test_a_death_after_the_start_is_noticed_too(redis: Redis, make_store: MakeStore) -> None:
    heir = await make_store("heir")
    dead = await make_store("dead", limits=limits(presence_ttl_s=0.3))
    dead.put(new("r1", "dead"))
    await eventually(lambda: dead.counters.writes == 1)
    abandon(dead)
    await eventually(lambda: heir.counters.lost_failed == 1)


async def test_one_wrongly_taken_for_dead_has_the_last_word(
    redis: Redis, make_store: MakeStore
) -> None:
    alive = await make_store("c1", limits=limits(heartbeat_s=60.0))
    live, failing = new("live", state="decoding"), new("failing", state="decoding")
    alive.put(live)
    alive.put(failing)
    await eventually(lambda: alive.counters.writes == 2)
    redis.delete(keys.coordinator("c1"))
    heir = await make_store("c2")
    await eventually(lambda: heir.counters.lost_failed == 2)
    done = advance(live, "finished", finish_reason="length")
    failed = advance(failing, "failed", failure_code="not_finite")
    alive.put(done)
    alive.put(failed)
    await eventually(lambda: stored(redis, "live") == done)
    await eventually(lambda: stored(redis, "failing") == failed)


async def test_another_protocol_is_refused_while_its_coordinator_lives(
    redis: Redis, make_store: MakeStore
) -> None:
    first = await make_store("c1", "baton/1")
    with pytest.raises(ProtocolConflict, match=r"c2 speaks baton/2, .* c1 .* speaks baton/1"):
        await make_store("c2", "baton/2")
    assert redis.exists(keys.coordinator("c2")) == 0
    await first.close(1.0)
    assert (await make_store("c2", "baton/2")).connected


# ---- a Redis that is not there


async def start_fails(url: str) -> str:
    store = Store(url, "c1", "baton/1")
    began = time.monotonic()
    with pytest.raises(RedisUnavailable) as caught:
        await store.start()
    assert time.monotonic() - began < 1.8
    assert caught.value.__cause__ is None
    return str(caught.value)


async def test_nobody_listens(tmp_path: Path) -> None:
    assert f"unix://{tmp_path}/none" in await start_fails(f"unix://{tmp_path}/none")
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{bound.getsockname()[1]}"
        said = await start_fails(f"redis://me:s3cret@{host}/0")
    assert f"redis://***@{host}/0" in said
    assert "s3cret" not in said


async def test_somebody_listens_and_says_nothing() -> None:
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        host = f"127.0.0.1:{mute.getsockname()[1]}"
        said = await start_fails(f"redis://:s3cret@{host}")
    assert f"redis://***@{host} did not answer within 1.0 s" in said


async def test_a_wrong_password(server: LocalRedis, redis: Redis) -> None:
    redis.config_set("requirepass", "right")
    for credentials in ("", ":s3cret@"):
        began = time.monotonic()
        said = await start_fails(server.url.replace("unix://", f"unix://{credentials}"))
        assert time.monotonic() - began < 0.8  # it does not try again until the deadline
        assert "s3cret" not in said
        assert "redis.sock" in said
    store = Store(server.url.replace("unix://", "unix://:right@"), "c1", "baton/1")
    await store.start()
    await store.close(1.0)


@pytest.mark.parametrize(
    "url",
    [
        "", "nonsense", "localhost:6379", "http://:s3cret@host", "redis://", "redis://:s3cret@",
        "redis://host/db", "redis://:s3cret@host:port", "redis://:s3/cret@host", "unix://",
        "unix:///", "unix://relative?password=s3cret", "redis://[::1", "//:s3cret@host/",
        "redis://:s3#cret@host", "redis://:s3?cret@host",
        "redis://user:12#s3cret@host", "redis://user:1/2?s3cret@host", "redis://:s3 cret@host",
    ],
)  # fmt: skip
def test_nonsense_is_refused_by_name(url: str) -> None:
    with pytest.raises(ValueError, match="BATON_REDIS_URL") as caught:
        Store(url, "c1", "baton/1")
    assert "cret" not in str(caught.value)


PRINTABLE = "".join(map(chr, range(33, 127))) + "é🙂 x"


async def test_a_password_of_any_characters_apart_from_the_url(
    server: LocalRedis, redis: Redis
) -> None:
    redis.config_set("requirepass", PRINTABLE)
    store = Store(server.url, "c1", "baton/1", redis_password=PRINTABLE)
    await store.start()
    assert await store.get("nobody") is None
    await store.close(1.0)
    with pytest.raises(ValueError, match="BATON_REDIS_PASSWORD: BATON_REDIS_URL holds") as caught:
        Store("redis://:s3cret@host", "c1", "baton/1", redis_password="other-s3cret")
    assert "cret" not in str(caught.value)


def test_a_url_is_shown_without_its_secrets() -> None:
    assert safe_url("redis://me:a@b@host:1/2?x=1") == "redis://***@host:1/2"
    assert safe_url("unix:///run/redis.sock?db=1&password=p") == "unix:///run/redis.sock"


# ---- the compare-and-set by itself


@pytest.fixture(scope="module")
def shared_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    local = LocalRedis(tmp_path_factory.mktemp("redis") / "run")
    local.start()
    with Redis.from_url(local.url, decode_responses=True) as client:
        load(client)
        yield client
    local.stop()


steps = st.lists(
    st.sampled_from(["again", "prefilling", "handoff", "decoding", "finished", "failed"]),
    max_size=8,
)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps, st.integers(0, 2**32))
def test_scripts_in_any_order_end_in_the_newest(
    shared_redis: Redis, steps: list[Any], seed: int
) -> None:
    shared_redis.flushdb()
    run(shared_redis, scripts.join("c1", "baton/1", {}, 60.0))
    records = [new()]
    for step in steps:
        last = records[-1]
        records.append(again(last, at=1.0) if step == "again" else advance(last, step))
    arriving = records * 2
    random.Random(seed).shuffle(arriving)
    held: RequestRecord | None = None
    for record in arriving:
        changed = held is None or latest(held, record) is not held
        known = scripts.SAME if held == record else scripts.NOT_NEWER
        reply = run(shared_redis, scripts.put(record, "c1"))
        assert reply == (scripts.APPLIED if changed else known)
        held = record if held is None else latest(held, record)
        assert stored(shared_redis, "r1") == held
    assert held == records[-1]
    is_open = shared_redis.sismember(keys.open_requests("c1"), "r1")
    assert bool(is_open) != records[-1].ended


def limits(**changes: Any) -> StoreLimits:
    return replace(FAST, **changes)


async def test_the_last_requests_of_all_coordinators(
    redis: Redis, make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "RECENT_MAX", 5)
    one, other = await make_store("c1"), await make_store("c2")
    records = [new(f"r{i}", ("c1", "c2")[i % 2], received_at=100.0 + i) for i in range(9)]
    for record in records:
        (one if record.coordinator == "c1" else other).put(record)
    one.put(new("unreceived"))
    await eventually(lambda: all(stored(redis, r.request_id) for r in records))
    assert await one.recent(3) == await other.recent(3) == records[:-4:-1]
    assert await one.recent(5) == records[:-6:-1]
    assert redis.zcard(keys.RECENT) == 5, "no more than the cap are listed"
    assert keys.RECENT_TTL_S - 60 < redis.ttl(keys.RECENT) <= keys.RECENT_TTL_S

    one.put(done := advance(records[8], "finished"))
    assert (await one.recent(1))[0] == done, "what Redis has yet to hear is told already"
    redis.delete(keys.request("r7"))
    await eventually(lambda: stored(redis, "r8") == done)
    assert [r.request_id for r in await one.recent(2)] == ["r8"], "what is long over is left out"


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
