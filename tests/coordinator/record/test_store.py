"""The store against a real Redis."""

import asyncio
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis import Redis

from coordinator.record import keys, scripts
from coordinator.record.presence import ProtocolConflict
from coordinator.record.record import RequestRecord
from coordinator.record.store import Store
from tests.coordinator.histories import advance, again, latest
from tests.coordinator.redis_scripts import load, run
from tests.coordinator.stores import (
    MakeStore,
    abandon,
    eventually,
    limits,
    new,
    slow_way,
    stored,
)
from tests.local_redis import LocalRedis


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
    store = await make_store(limits=limits(presence_ttl_s=4.0))
    store.register_worker("p1", {"role": "prefill", "device": "cpu"})
    await eventually(lambda: redis.exists(keys.worker("p1")))
    expected = {"role": "prefill", "device": "cpu", "coordinator": "c1"}
    assert redis.hgetall(keys.worker("p1")) == expected
    seen_until = time.monotonic() + 5.2
    await eventually(
        lambda: time.monotonic() > seen_until or not redis.exists(keys.worker("p1")),
        deadline_s=20.0,
    )
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

    async with slow_way(server, tmp_path / "slow", 0.06) as url:
        few = limits(
            call_timeout_s=6.0,
            start_timeout_s=2.4,
            presence_ttl_s=3.0,
            heartbeat_s=0.3,
            max_batch=8,
        )
        heir = Store(url, "heir", "baton/1", limits=few)
        await heir.start()
        heir.put(new("meanwhile", "heir"))
        await eventually(lambda: stored(redis, "meanwhile"))
        assert heir.counters.lost_failed < 640, "clearing up holds up no record"
        await eventually(lambda: heir.counters.lost_failed == 640, deadline_s=60.0)
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


def test_the_last_requests_are_listed_through_a_day_without_any(shared_redis: Redis) -> None:
    shared_redis.flushdb()
    join = scripts.join("c1", "baton/1", {}, 60.0)
    run(shared_redis, join)
    run(shared_redis, scripts.put(new("r1", received_at=100.0), "c1"))
    shared_redis.expire(keys.RECENT, 60)
    run(shared_redis, join)
    assert shared_redis.ttl(keys.RECENT) > keys.RECENT_TTL_S - 60


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
