"""The system's clock is set forward or back by an hour, here or where Redis runs: no decision
depends on it."""

import ast
import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import httpx
import msgspec
import pytest
from redis import Redis

from coordinator.http.http_settings import HttpSettings
from coordinator.http.timeline import RequestTimeline
from coordinator.record import keys
from coordinator.record.record import RequestRecord
from coordinator.record.settings import StoreLimits
from coordinator.record.store import Store
from coordinator.text.tokenizer import Tokenizer
from tests.coordinator.apps import make_app
from tests.coordinator.core.test_hub import FAST, Generate, SequenceRequest, Site
from tests.coordinator.histories import advance
from tests.coordinator.http.test_history import FakeHistory
from tests.coordinator.stores import FAST as STORE
from tests.coordinator.stores import abandon, eventually, stored
from tests.local_redis import LocalRedis
from transport.wire.messages import Prefilled, TokenOut, Tokens
from transport.wire.sampling import SamplingParams, StopRule
from transport.wire.token_ids import packed

ROOT = Path(__file__).parents[3]
HOUR_S = 3600.0
MakeStore = Callable[[str, StoreLimits], Awaitable[Store]]
BY = pytest.mark.parametrize("by_s", [HOUR_S, -HOUR_S], ids=["forward", "back"])


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    site = Site(FAST)
    yield site
    await site.close()


@BY
async def test_the_system_clock_jumps_in_the_middle_of_a_request(
    by_s: float, site: Site, monkeypatch: pytest.MonkeyPatch, tokenizer: Tokenizer
) -> None:
    real = time.time
    app_history = FakeHistory()
    app = make_app(
        site.hub, tokenizer, HttpSettings("tiny"), history=app_history, now=site.observer.clock
    )

    async def told() -> RequestTimeline:
        record: RequestRecord = site.records.put.call_args.args[0]
        app_history.records["r"] = record
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://t") as client:
            one = msgspec.json.decode(
                (await client.get("/v1/requests/r")).content, type=RequestTimeline
            )
            (listed,) = (await client.get("/v1/requests")).json()["data"]
        assert listed["received_at"] == one.received_at
        assert 0 <= listed["duration_s"] < 60
        assert sum(stage.duration_s for stage in one.stages) == pytest.approx(one.duration_s)
        assert 0 <= one.duration_s < 60
        return one

    both = site.join("b-1", "colocated")
    await asyncio.to_thread(both.session.join, 5.0)
    stream = site.hub.submit(SequenceRequest("r", packed((1, 2)), SamplingParams(), StopRule(2)))
    order = await asyncio.to_thread(both.hear, Generate)
    monkeypatch.setattr(time, "time", lambda: real() + by_s)
    assert (await told()).ended_at is None
    both.session.send(Prefilled(TokenOut("r", order.attempt, 0, 7), None, 0.0, 0.0))
    assert (await asyncio.wait_for(anext(stream), 5.0)).token_id == 7
    assert (await told()).ended_at is None
    both.session.send(Tokens((TokenOut("r", order.attempt, 1, 8, finish="length"),)))
    async with asyncio.timeout(5.0):
        assert [token.token_id async for token in stream] == [8]
    one = await told()
    assert one.ended_at is not None
    assert one.ttft_s is not None
    assert 0 < one.ttft_s < one.duration_s
    assert [worker.instance for worker in site.hub.status().workers] == ["b-1"]
    lost = [line for line in site.text.splitlines() if line.startswith("baton_workers_lost_total{")]
    assert lost
    assert all(line.endswith(" 0.0") for line in lost)


# ---- where Redis runs


@pytest.fixture
async def make_store(server: LocalRedis) -> AsyncIterator[MakeStore]:
    made: list[Store] = []

    async def make(instance: str, limits: StoreLimits) -> Store:
        made.append(Store(server.url, instance, "baton/1", limits=limits))
        await made[-1].start()
        return made[-1]

    yield make
    for store in made:
        await store.close(1.0)


def jump(redis: Redis, by_s: float) -> None:
    """What a jump of Redis' clock means: all that expires does so as much sooner."""
    redis.eval(
        """
        for _, key in ipairs(redis.call('KEYS', '*')) do
          local left = redis.call('PTTL', key)
          if left >= 0 then redis.call('PEXPIRE', key, left - ARGV[1]) end
        end
        """,
        0, int(by_s * 1000),
    )  # fmt: skip


@BY
async def test_what_lives_is_known_again_and_what_is_open_goes_on(
    by_s: float, redis: Redis, make_store: MakeStore
) -> None:
    store = await make_store("c1", STORE)
    store.register_worker("d1", {"role": "decode"})
    live = RequestRecord(request_id="live", coordinator="c1", state="decoding")
    done = RequestRecord(request_id="done", coordinator="c1", state="finished")
    for record in (live, done):
        store.put(record)
    await eventually(lambda: store.counters.writes == 2)

    jump(redis, by_s)
    alive = [keys.coordinator("c1"), keys.worker("d1")]
    await eventually(lambda: all(0 < redis.pttl(key) <= 5_000 for key in alive))
    await eventually(lambda: (stored(redis, "live"), stored(redis, "done")) == (live, done))
    ended = advance(live, "finished")
    store.put(ended)
    await eventually(lambda: stored(redis, "live") == ended)
    assert (store.counters.lost_failed, store.dropped, store.connected) == (0, 0, True)


async def test_what_is_dead_is_found_so_in_time_though_the_clock_was_set_back(
    redis: Redis, make_store: MakeStore
) -> None:
    short = replace(STORE, presence_ttl_s=0.5)
    heir, dead = await make_store("heir", short), await make_store("dead", short)
    dead.put(RequestRecord(request_id="r", coordinator="dead"))
    await eventually(lambda: dead.counters.writes == 1)
    abandon(dead)
    jump(redis, -HOUR_S)
    await eventually(lambda: heir.counters.lost_failed == 1)
    failed = stored(redis, "r")
    assert failed is not None
    assert failed.failure_code == "coordinator_lost"


# ---- what may read it


def test_the_wall_clock_is_read_for_what_people_read_only() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {ast.unparse(node)}"
        for package in ("colocated", "coordinator", "decode", "engine", "prefill", "telemetry",
                        "transport", "worker", "deploy")
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute | ast.ImportFrom) and _is_wall_clock(node)
    }  # fmt: skip
    assert found == {
        "coordinator/text/chat_template.py: datetime.now",  # the date in a template
        "coordinator/http/answer.py: time.time",  # "created"
        "coordinator/http/responses/answer.py: time.time",  # "completed_at"
        "coordinator/http/responses/schemas.py: time.time",  # "created_at"
        "coordinator/http/app_context.py: time.time",  # "created" of the model
        "coordinator/record/presence.py: time.time",  # since when; when it failed
        "telemetry/clock.py: time.time",  # once a process
    }


def _is_wall_clock(node: ast.Attribute | ast.ImportFrom) -> bool:
    if isinstance(node, ast.ImportFrom):
        return node.module == "time"
    return ast.unparse(node) in {
        "time.time", "time.time_ns", "time.CLOCK_REALTIME", "datetime.now", "datetime.utcnow",
        "datetime.today", "date.today", "datetime.datetime.now", "datetime.date.today",
    }  # fmt: skip
