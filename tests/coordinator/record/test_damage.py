"""Another program writes to Baton's keys: each of them hurts only what it holds."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis import Redis
from redis.exceptions import ResponseError

from coordinator.http.timeline import timeline
from coordinator.record import keys
from coordinator.record.record import RequestRecord
from coordinator.record.redis_link import LOG_EVERY_S, Damage
from coordinator.record.settings import StoreLimits
from coordinator.record.store import Store
from tests.coordinator.histories import advance
from tests.coordinator.stores import abandon, eventually, stored
from tests.local_redis import LocalRedis
from transport.wire.errors import MalformedMessage

LIMITS = StoreLimits(
    call_timeout_s=10.0, start_timeout_s=10.0, heartbeat_s=0.1, presence_ttl_s=20.0,
    backoff_min_s=0.02, backoff_max_s=0.1, max_batch=4,
)  # fmt: skip
HOUR_AGO = time.time() - 3600


def new(request_id: str, coordinator: str, at: int = 0) -> RequestRecord:
    return RequestRecord(
        request_id=request_id, coordinator=coordinator, state="decoding", received_at=HOUR_AGO + at
    )


LEFT = [new(f"left-{n}", "dead", n) for n in range(6)]
DONE = advance(new("done", "c1", 20), "finished")
OPEN = [new(f"open-{n}", "c1", 10 + n) for n in range(3)]
KEYS = {
    keys.request("left-0"), keys.request("open-0"), keys.request("done"), keys.RECENT,
    keys.open_requests("dead"), keys.open_requests("c1"), keys.coordinator("dead"),
    keys.coordinator("c1"), keys.COORDINATORS, keys.worker("d1"),
}  # fmt: skip

# These are only ever written, never compared or extended.
WRITTEN_WHOLE = {keys.worker("d1"), keys.request("done")}


async def until(condition: Callable[[], bool]) -> None:
    """As ``eventually``, for many at once; a key that is damaged yet is no error."""

    def holds() -> bool:
        with suppress(ResponseError, MalformedMessage):
            return condition()
        return False

    await eventually(holds, 20.0, every_s=0.05)


def state(redis: "Redis[str]", record: RequestRecord) -> str | None:
    return redis.hget(keys.request(record.request_id), "state")


def damage(redis: "Redis[str]", key: str, kind: str) -> None:
    was = redis.type(key)
    if kind == "garbage" and was == "hash":
        for field in redis.hkeys(key):
            redis.hset(key, field, "gar\x00bage")
    elif kind == "garbage" and was == "set":
        redis.delete(key)
        redis.sadd(key, "gar\x00bage", b"\xff")
    elif kind == "garbage" and was == "zset":
        redis.delete(key)
        redis.zadd(key, {"gar\x00bage": 1e300, "": float("inf"), b"\xff": -1.0})
    elif kind == "garbage" and was == "string":
        redis.set(key, b"\xff\x00")
    else:
        redis.delete(key)
        if kind == "another: text":
            redis.rpush(key, "x") if was == "string" else redis.set(key, "x")
        elif kind == "another: list":
            redis.rpush(key, "x")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRedis]:
    local = LocalRedis(tmp_path_factory.mktemp("redis") / "run")
    local.start()
    yield local
    local.stop()


@asynccontextmanager
async def started(url: str, instance: str) -> AsyncIterator[Store]:
    store = Store(url, instance, "baton/1", limits=LIMITS)
    await store.start()
    try:
        yield store
    finally:
        began = time.monotonic()
        await store.close(5.0)
    assert time.monotonic() - began < 4.0
    assert store.num_unwritten == 0


async def one_key(url: str, key: str, kind: str) -> None:
    """A live and a dead coordinator with open requests, and then ``key`` is damaged."""
    with Redis.from_url(url, decode_responses=True, encoding_errors="backslashreplace") as redis:
        # Without heartbeats: one that is under way when it dies would make it live.
        dead = Store(url, "dead", "baton/1", limits=replace(LIMITS, heartbeat_s=60.0))
        await dead.start()
        for record in LEFT:
            dead.put(record)
        await until(lambda: all(stored(redis, each.request_id) == each for each in LEFT))
        async with started(url, "c1") as store:
            store.register_worker("d1", {"role": "decode"})
            for record in [DONE, *OPEN]:
                store.put(record)
            await until(lambda: redis.exists(*KEYS) == len(KEYS))
            # A heartbeat has seen them all: only then does a later one find that some are missing.
            num_put = len([DONE, *OPEN, *LEFT])
            await until(lambda: store._presence._num_recent == num_put)
            abandon(dead)
            damage(redis, key, kind)
            ended = [advance(record, "finished", num_output=7) for record in OPEN[:2]]
            late = new("late", "c1", 30)
            for record in [*ended, late]:
                store.put(record)
            if key == keys.coordinator("dead") and kind.startswith("another"):
                await until(lambda: store.damage.num_replaced == 1)
                assert redis.pttl(key) > 0, "it may live: it gets the time to say so"
            redis.delete(keys.coordinator("dead"))
            still_open = {"late"} if kind == "garbage" else {"late", "open-2"}
            is_gone = kind == "deleted" and key == keys.request("left-0")

            def healed() -> bool:
                return (
                    all(stored(redis, each.request_id) == each for each in [*ended, late])
                    and all(state(redis, each) == "failed" for each in LEFT[is_gone:])
                    and redis.smembers(keys.open_requests("c1")) >= still_open
                    and redis.hget(keys.worker("d1"), "role") == "decode"
                )

            await until(healed)
            async with started(url, "other") as other:
                listed = {record.request_id for record in await other.recent(100)}
            known = {record.request_id for record in [*LEFT, *OPEN, DONE, late]}
            missing = {key.removeprefix(keys.REQUEST_PREFIX)}
            if key == keys.RECENT:  # whose requests were no living coordinator's
                missing |= {record.request_id for record in LEFT}
            assert known - listed <= missing
            assert store.connected
            assert store.counters.failures == 0
            num_replaced = store.damage.num_replaced + other.damage.num_replaced
            if kind.startswith("another"):
                assert bool(num_replaced) == (key not in WRITTEN_WHOLE)


@pytest.mark.parametrize("kind", ["another: text", "another: list", "deleted", "garbage"])
async def test_a_damaged_key_hurts_only_what_it_holds(server: LocalRedis, kind: str) -> None:
    with Redis.from_url(server.url) as redis:
        redis.flushall()
    cases = [
        one_key(f"{server.url}?db={number}", key, kind) for number, key in enumerate(sorted(KEYS))
    ]
    results = await asyncio.gather(*cases, return_exceptions=True)
    failed = {k: repr(r) for k, r in zip(sorted(KEYS), results, strict=True) if r is not None}
    assert not failed


async def test_what_cannot_be_written_is_tried_ever_more_seldom(server: LocalRedis) -> None:
    """A server that is met but refuses every write."""
    with Redis.from_url(server.url, decode_responses=True) as redis:
        redis.flushall()
        limits = replace(LIMITS, backoff_max_s=0.4)
        store = Store(server.url, "c1", "baton/1", limits=limits)
        await store.start()
        redis.execute_command("ACL", "SETUSER", "default", "-zadd")
        try:
            store.put(new("r1", "c1"))
            await eventually(lambda: not store.connected)
            came_back = 0
            until_s = time.monotonic() + 1.2

            def over() -> bool:
                nonlocal came_back
                came_back += store.connected
                return time.monotonic() > until_s

            await eventually(over)
            # Delays of 20, 40, 80, 160, 320 and 400 ms, each or half of it.
            assert store.counters.failures <= 10
            assert came_back == store.counters.reconnects == 0
        finally:
            redis.execute_command("ACL", "SETUSER", "default", "+zadd")
        await eventually(lambda: stored(redis, "r1") and store.connected)
        assert store.counters.reconnects == 1
        await store.close(1.0)


@given(
    st.dictionaries(
        st.sampled_from(sorted(new("r", "c").__struct_fields__)),
        st.sampled_from(
            ["", "-1", "1e400", "nan", "9" * 30, "decoding", "stop", "0", "5.5", "\x00"]
        ),
    )
)
def test_a_damaged_record_is_told_or_refused(fields: dict[str, str]) -> None:
    try:
        record = RequestRecord.from_fields(new("r", "c").to_fields() | fields)
    except MalformedMessage:
        return
    msgspec.json.encode(timeline(record, time.time()))


def test_damage_is_said_once_a_while(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    damage = Damage(clock=lambda: now)
    for _ in range(3):
        damage.replaced(["baton:request:r (list)"])
        damage.unreadable("baton:request:r", "no hash")
    now = LOG_EVERY_S
    damage.replaced(["baton:recent (string)", "baton:open:c1 (hash)"])
    assert (damage.num_replaced, damage.num_unreadable) == (5, 3)
    first, unreadable, later = [record.getMessage() for record in caplog.records]
    assert first.startswith("1 keys")
    assert "baton:request:r (list)" in first
    assert "skipped the unreadable record baton:request:r" in unreadable
    assert later.startswith("5 keys")
