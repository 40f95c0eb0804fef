"""The record of an end is there before the client has its whole answer, if Redis is quick."""

import asyncio
import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from fastapi import FastAPI
from redis import Redis

from coordinator.core.contract import GenerationFailed, SequenceRequest
from coordinator.http.http_settings import HttpSettings
from coordinator.record import keys, scripts
from coordinator.record.record import RequestRecord
from coordinator.record.settings import StoreLimits
from coordinator.record.store import Store
from coordinator.text.tokenizer import Tokenizer
from tests.coordinator.apps import make_app
from tests.coordinator.fake_core import FakeCore, FakeStream
from tests.coordinator.histories import advance
from tests.coordinator.redis_scripts import load, run
from tests.coordinator.stores import abandon, eventually, stored
from tests.local_redis import LocalRedis

LIMITS = StoreLimits(call_timeout_s=5.0, heartbeat_s=60.0, presence_ttl_s=60.0, end_wait_s=2.0)


class RecordingStream(FakeStream):
    """Tells the store of its end, as the hub does, at once."""

    store: Store

    def _end(self, outcome: str) -> None:
        super()._end(outcome)
        state: Any = "failed" if outcome == "failed" else "finished"
        self.store.put(advance(record_of(self.spec), state))


class RecordingCore(FakeCore):
    """A core whose requests are in the record of ``store``."""

    store: Store

    def submit(self, spec: SequenceRequest) -> FakeStream:
        script = self.script(spec)
        stream = RecordingStream(spec, script, self.failure, self.gate)
        stream.store = self.store
        self.store.put(record_of(spec))
        self.streams.append(stream)
        return stream

    async def recorded(self, request_ids: Any) -> None:
        await self.store.recorded(request_ids)

    def cut(self, request_ids: Any) -> None:
        for request_id in request_ids:
            self.store.cut(request_id)


def record_of(spec: SequenceRequest) -> RequestRecord:
    return RequestRecord(
        request_id=spec.request_id, coordinator="c1", state="decoding", received_at=1.0
    )


class Client:
    """One HTTP request, asked over ASGI. Once ``dead`` is set, nothing leaves any more, as when the
    process was killed."""

    def __init__(self, app: FastAPI, *, stream: bool, num_choices: int = 1) -> None:
        self._app = app
        self._body = msgspec.json.encode(
            {"prompt": [1, 2], "max_tokens": 4, "ignore_eos": True, "stream": stream,
             "n": num_choices}
        )  # fmt: skip
        self.received = b""
        self.whole = self.dead = False
        self.on_last: Any = lambda: None

    async def ask(self) -> None:
        scope = {
            "type": "http", "method": "POST", "path": "/v1/completions",
            "headers": [(b"content-type", b"application/json")],
            "query_string": b"", "http_version": "1.1", "scheme": "http", "root_path": "",
        }  # fmt: skip
        asked = asyncio.Event()

        async def receive() -> dict[str, Any]:
            if asked.is_set():
                await asyncio.Event().wait()
            asked.set()
            return {"type": "http.request", "body": self._body, "more_body": False}

        async def send(message: Any) -> None:
            if self.dead:
                return
            self.received += message.get("body", b"")
            if message["type"] == "http.response.body" and not message.get("more_body"):
                self.whole = True
                self.on_last()

        await self._app(scope, receive, send)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRedis]:
    local = LocalRedis(tmp_path_factory.mktemp("redis") / "run")
    local.start()
    yield local
    local.stop()


@pytest.fixture
def redis(server: LocalRedis) -> Iterator["Redis[str]"]:
    with Redis.from_url(server.url, decode_responses=True) as client:
        client.flushall()
        load(client)
        yield client


@pytest.fixture
def site(tokenizer: Tokenizer) -> tuple[FastAPI, RecordingCore]:
    core = RecordingCore(lambda _: [5, 6, 7, 8])
    return make_app(core, tokenizer, HttpSettings("tiny")), core


async def started(server: LocalRedis, core: RecordingCore, **changes: Any) -> Store:
    core.store = Store(server.url, "c1", "baton/1", limits=replace(LIMITS, **changes))
    await core.store.start()
    return core.store


@pytest.mark.parametrize("stream", [True, False])
async def test_killed_with_the_last_byte_the_record_has_the_end(
    server: LocalRedis, redis: "Redis[str]", site: tuple[FastAPI, RecordingCore], stream: bool
) -> None:
    app, core = site
    for number in range(60):
        store = await started(server, core)
        if number == 45:
            core.failure = GenerationFailed("worker_lost", "gone")
            core.script = lambda _: [5, 6]
        client = Client(app, stream=stream, num_choices=1 + number % 2)
        client.on_last = lambda store=store: abandon(store)
        await client.ask()
        assert client.whole
        for each in core.streams[-1 - number % 2 :]:
            found = stored(redis, each.spec.request_id)
            assert found is not None
            assert found.state == ("failed" if each.outcome == "failed" else "finished"), number
            assert found.failure_code == ""
        await store.close(0.0)


async def test_killed_at_any_moment_the_record_says_finished_or_that_it_does_not_know(
    server: LocalRedis, redis: "Redis[str]", site: tuple[FastAPI, RecordingCore]
) -> None:
    app, core = site
    draw = random.Random(12)
    asked: list[tuple[Client, str]] = []
    for _ in range(100):
        store = await started(server, core, batch_window_s=0.0)
        core.gate = asyncio.Semaphore(0)
        client = Client(app, stream=True)
        asking = asyncio.create_task(client.ask())
        await eventually(lambda store=store: core.streams and store.counters.writes == 1)
        for _ in range(draw.randrange(60)):
            core.gate.release()
            await asyncio.sleep(0)
        abandon(store)
        client.dead = True
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await store.close(0.0)
        asked.append((client, core.streams.pop().spec.request_id))
    redis.delete(keys.coordinator("c1"))
    run(redis, scripts.fail_lost("c1", time.time(), 1000))
    found = [(client.whole, stored(redis, request_id)) for client, request_id in asked]
    assert {record and record.state for whole, record in found if whole} == {"finished"}
    unknown = [record for _, record in found if record and record.state != "finished"]
    assert len(unknown) > 10
    for record in unknown:
        assert (record.state, record.failure_code) == ("failed", "coordinator_lost")
        assert "its outcome is unknown" in record.failure_message


async def test_a_redis_that_stalls_holds_up_one_answer_for_a_moment(
    server: LocalRedis, redis: "Redis[str]", site: tuple[FastAPI, RecordingCore]
) -> None:
    app, core = site
    store = await started(server, core, end_wait_s=0.05)
    await Client(app, stream=True).ask()
    os.kill(server.pid, signal.SIGSTOP)
    waits: list[float] = []
    recorded = store.recorded

    async def timed(request_ids: Any) -> None:
        began = time.monotonic()
        await recorded(request_ids)
        waits.append(time.monotonic() - began)

    store.recorded = timed  # type: ignore[method-assign]
    try:
        for _ in range(20):
            client = Client(app, stream=True)
            await client.ask()
            assert client.received.endswith(b"data: [DONE]\n\n")
    finally:
        os.kill(server.pid, signal.SIGCONT)
    assert len(waits) == 20
    assert sum(wait >= 0.04 for wait in waits) <= 1, "all others do not wait"
    await eventually(lambda: store.num_unwritten == 0)
    store.recorded = recorded  # type: ignore[method-assign]
    last = None
    async with asyncio.timeout(10.0):
        while last is None or last.state != "finished":  # once it is quick again
            await Client(app, stream=True).ask()
            last = stored(redis, core.streams[-1].spec.request_id)
    await store.close(1.0)


async def test_an_end_goes_before_a_backlog(server: LocalRedis, redis: "Redis[str]") -> None:
    limits = replace(LIMITS, max_batch=2, batch_window_s=60.0)
    store = Store(server.url, "c1", "baton/1", limits=limits)
    await store.start()
    records = [RequestRecord(request_id=f"r{n}", coordinator="c1") for n in range(400)]
    for record in records:
        store.put(record)
    done = advance(records[-1], "finished")
    store.put(done)
    await store.recorded(["r399", "r1", "unknown"])
    assert stored(redis, "r399") == done
    assert store.num_unwritten > 300
    await store.close(5.0)


async def test_without_redis_nothing_waits(server: LocalRedis, redis: "Redis[str]") -> None:
    store = Store(server.url, "c1", "baton/1", limits=LIMITS)
    await store.start()
    redis.execute_command("ACL", "SETUSER", "default", "-zadd")
    try:
        record = RequestRecord(request_id="r", coordinator="c1", state="finished", received_at=1.0)
        store.put(record)
        async with asyncio.timeout(1.0):
            await store.recorded(["r"])  # until it was refused
        assert not store.connected
        async with asyncio.timeout(1.0):
            await store.recorded(["r"])
    finally:
        redis.execute_command("ACL", "SETUSER", "default", "+zadd")
    await store.close(2.0)


async def test_an_answer_that_was_cut_off_after_its_end_is_recorded_as_such(
    server: LocalRedis, redis: "Redis[str]"
) -> None:
    store = Store(server.url, "c1", "baton/1", limits=LIMITS)
    await store.start()
    record = RequestRecord(request_id="whole", coordinator="c1", received_at=1.0)
    for name, state in (("whole", "finished"), ("cut", "finished"), ("left", "cancelled")):
        store.put(advance(msgspec.structs.replace(record, request_id=name), state, ended_at=2.0))
    await store.recorded(["whole", "cut", "left"])
    for name in ("cut", "cut", "left", "unknown"):
        store.cut(name)
    await store.recorded(["cut"])
    assert [stored(redis, name).answer_cut for name in ("whole", "cut", "left")] == [
        False, True, False,
    ]  # fmt: skip
    assert stored(redis, "cut").state == "finished"
    await store.close(1.0)
