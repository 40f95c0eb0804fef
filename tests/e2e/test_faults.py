"""Processes die, hang and leave while streams run; the clients see only time.

After every case the pools are whole, the books balance, and Redis tells of each request what
its client saw.
"""

import asyncio
import os
import random
import resource
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from coordinator.record import keys
from tests.cut import Cut
from tests.e2e.limits import as_before, no_more
from tests.e2e.records import Records, outcomes, settled
from tests.e2e.served import LONG, served_long
from tests.e2e.stack import Stack
from tests.e2e.streams import Seen, Stream, all_ended, some_reach
from tests.e2e.waiting import eventually
from tests.local_redis import LocalRedis

NUM_TOKENS = 120
NUM_WORKERS = 4
DEAD_AFTER_S = 3.0
SETTINGS: dict[str, Any] = {
    "heartbeat": 0.25,
    "dead_after": DEAD_AFTER_S,
    "page_size": 16,
    "num_pages": 1024,
    "max_batch_tokens": 128,
    "poison": True,
    "verify_handoff": True,
}


class Site:
    """A stack with two workers of each kind, and a Redis that outlives its services."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.undisturbed: list[Seen] = []
        self.redis = LocalRedis(folder)
        self.redis.start()
        args = ("--prefill", "2", "--decode", "2", "--redis-url", self.redis.url)
        self.baton = Stack(served_long("per_expert"), *args, **SETTINGS).start()

    def streams(self, count: int = 8, max_tokens: int = NUM_TOKENS) -> list[Stream]:
        """Streams, eight at most, greedy and sampled, the same every time."""
        draw = random.Random(7)
        lengths = [5, 64, 200, 17, 330, 90, 5, 64]
        prompts = [[draw.randrange(260) for _ in range(n)] for n in lengths]
        return [
            Stream(self.baton.url, prompt, max_tokens=max_tokens, seed=i, temperature=float(i % 2))
            for i, prompt in enumerate(prompts[:count])
        ]

    def endless(self) -> list[Stream]:
        """The same with more tokens than any test waits for."""
        return self.streams(max_tokens=LONG - 1000)

    async def whole(self, expected: dict[str, str], deadline_s: float = 20.0) -> Records:
        await self.baton.idle(NUM_WORKERS, deadline_s)
        with self.baton.redis() as server:
            return await settled(server, expected, deadline_s)

    async def pid(self, name: str) -> int:
        """The process of a service, which may be starting again."""

        async def found() -> int:
            pids = self.baton.pids()
            assert name in pids
            return pids[name]

        return await eventually(found, f"{name} runs")

    def close(self) -> None:
        self.baton.close()
        self.redis.stop()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("redis")
    folder.chmod(0o700)
    site = Site(folder)
    yield site
    site.close()


@pytest.fixture
async def undisturbed(site: Site) -> list[Seen]:
    """What ``site.streams`` yields when nothing happens; asked for once."""
    if not site.undisturbed:
        streams = await all_ended(site.streams())
        assert {stream.finish for stream in streams} == {"length"}
        site.undisturbed = [stream.seen for stream in streams]
    await site.whole({})
    return site.undisturbed


async def in_the_middle(streams: list[Stream]) -> None:
    """Wait until half of them have twenty tokens: by then all of them run."""
    await some_reach(streams, len(streams) // 2, num_tokens=20)


async def check_undisturbed(
    site: Site, streams: list[Stream], seen: list[Seen], deadline_s: float = 20.0
) -> int:
    """Wait for the end; nothing may differ, and all workers are there again by the deadline.
    Returns how many requests were retried."""
    await all_ended(streams)
    assert [stream.error for stream in streams] == [None] * len(streams)
    for stream, expected in zip(streams, seen, strict=True):
        assert stream.seen == expected
    records = await site.whole(outcomes(streams), deadline_s)
    return sum(int(records[stream.http_id]["attempt"]) > 1 for stream in streams)


async def check_broken_or_undisturbed(site: Site, streams: list[Stream], seen: list[Seen]) -> None:
    """Each has ended with its connection or as if nothing had happened; each record has ended."""
    await all_ended(streams)
    whole = {}
    for stream, expected in zip(streams, seen, strict=True):
        assert stream.error is None
        if stream.finish:
            assert stream.seen == expected
            whole[stream.http_id] = stream.outcome
        assert stream.token_ids == expected[0][: len(stream.token_ids)]
    await site.whole(whole, 60.0)


async def check_endless(site: Site, streams: list[Stream], seen: list[Seen]) -> int:
    """Wait until each has what an undisturbed stream ends with, and leave it. Returns how many
    requests were retried."""
    for stream in streams:
        await stream.reaches(NUM_TOKENS)
    for stream, (token_ids, text, _) in zip(streams, seen, strict=True):
        await stream.disconnect()
        assert stream.token_ids[:NUM_TOKENS] == token_ids
        assert stream.text.startswith(text.rstrip("\ufffd"))  # of a character's first bytes
    records = await site.whole(outcomes(streams))
    return sum(int(records[stream.http_id]["attempt"]) > 1 for stream in streams)


async def test_prefill_worker_killed(site: Site, undisturbed: list[Seen]) -> None:
    site.baton.kill("prefill-1", signal.SIGSTOP)  # it has prompts left when it is killed
    streams = site.streams()
    await some_reach(streams, 1, num_tokens=1)
    site.baton.kill("prefill-1")
    assert await check_undisturbed(site, streams, undisturbed) > 0


async def test_decode_worker_killed_mid_stream(site: Site, undisturbed: list[Seen]) -> None:
    streams = site.endless()
    await in_the_middle(streams)
    since = len(site.baton.lines)
    site.baton.kill("decode-1")
    fenced = await asyncio.to_thread(site.baton.until, r"fenced decode-\w+: (.*)", 20.0, since)
    assert fenced[1].startswith("its connection is closed"), "noticed by its silence"
    assert await check_endless(site, streams, undisturbed) >= 3


async def test_decode_worker_hangs_and_wakes(site: Site, undisturbed: list[Seen]) -> None:
    streams = site.endless()
    await in_the_middle(streams)
    since = len(site.baton.lines)
    before = site.baton.pids()["decode-2"]
    site.baton.kill("decode-2", signal.SIGSTOP)
    await asyncio.to_thread(site.baton.until, r"fenced decode-\w+: silent", 20.0, since)
    for stream in streams:
        await stream.reaches(NUM_TOKENS)  # without the worker that hangs
    site.baton.kill("decode-2", signal.SIGCONT)
    await asyncio.to_thread(site.baton.until, "decode-2: fenced: silent for", 10.0, since)
    assert await check_endless(site, streams, undisturbed) >= 3
    assert site.baton.pids()["decode-2"] != before


@pytest.mark.parametrize("limit", [resource.RLIMIT_AS, resource.RLIMIT_NOFILE])
async def test_workers_that_get_no_more_memory_or_descriptors(
    site: Site, undisturbed: list[Seen], limit: int
) -> None:
    """Whether they go on with what they have or end, streams are the same."""
    streams = site.streams()
    await some_reach(streams, 2, num_tokens=1)
    # One that got no more memory in the test before may have ended just now.
    pids = [await site.pid(name) for name in ("prefill-1", "decode-1")]
    before = [no_more(pid, limit) for pid in pids]
    await check_undisturbed(site, streams, undisturbed, 60.0)
    await check_undisturbed(site, site.streams(), undisturbed, 60.0)
    for pid, limits in zip(pids, before, strict=True):
        as_before(pid, limit, limits)  # of one that has ended, the next has its parent's limits


@pytest.mark.parametrize("limit", [resource.RLIMIT_AS, resource.RLIMIT_NOFILE])
async def test_a_coordinator_that_gets_no_more_memory_or_descriptors(
    site: Site, undisturbed: list[Seen], limit: int
) -> None:
    """Without descriptors streams go on, and new requests wait. Without memory a stream may break,
    never with a wrong token, and new requests may get a 503, or no answer where there is none even
    for that."""
    streams = site.streams()
    await some_reach(streams, 2, num_tokens=1)
    pid = site.baton.pids()["coordinator"]
    before = no_more(pid, limit)
    limits = httpx.Limits(max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=site.baton.url, timeout=30.0, limits=limits) as http:
        body = {"prompt": [1, 2, 3], "max_tokens": 5}
        asked = [asyncio.create_task(http.post("/v1/completions", json=body)) for _ in range(6)]
        await asyncio.wait(asked, timeout=1.0)
        as_before(pid, limit, before)
        found = await asyncio.gather(*asked, return_exceptions=True)
    for answer in found:
        if isinstance(answer, httpx.Response):
            assert answer.status_code in {200, 503}
            assert answer.status_code == 200 or limit == resource.RLIMIT_AS
        else:
            assert isinstance(answer, httpx.RemoteProtocolError | httpx.ReadError), repr(answer)
            assert limit == resource.RLIMIT_AS
    if limit == resource.RLIMIT_AS:
        await check_broken_or_undisturbed(site, streams, undisturbed)
    else:
        await check_undisturbed(site, streams, undisturbed, 60.0)
    await check_undisturbed(site, site.streams(), undisturbed, 60.0)
    await site.whole({}, 40.0)


async def _computes(baton: Stack, pid: int) -> None:
    workers = (await baton.status())["workers"]
    assert any(each["pid"] == pid and each["running"] for each in workers)


@pytest.mark.parametrize("name", ["prefill-1", "decode-1"])
async def test_a_worker_is_cut_off_while_its_peers_reach_it(
    site: Site, undisturbed: list[Seen], name: str
) -> None:
    """Its connection stands and carries nothing. Peers go on reading its memory, or it theirs."""
    cut = Cut(site.baton.endpoint)
    await cut.take_over()
    try:
        since = len(site.baton.lines)
        site.baton.kill(name)
        await asyncio.to_thread(site.baton.until, f"^{name}: ready", 40.0, since)
        await site.whole({}, 40.0)
        before = site.baton.pids()[name]
        role = name.partition("-")[0]
        streams = site.endless()
        await some_reach(streams, 2, num_tokens=5)
        if role == "decode":
            await eventually(partial(_computes, site.baton, before), f"{name} has streams")
        cut.open.clear()
        since = len(site.baton.lines)
        more = site.streams()  # some are sent to the worker that cannot hear them
        await asyncio.to_thread(site.baton.until, rf"fenced {role}-\w+: silent", 20.0, since)
        await all_ended(more)
        assert site.baton.pids()[name] == before, "nobody has told it yet"
        cut.give_back()
        cut.open.set()
        num_retried = await check_endless(site, streams, undisturbed)
        assert num_retried + await check_undisturbed(site, more, undisturbed, 60.0) > 0
        assert site.baton.pids()[name] != before, "it was fenced: it ends and is started again"
    finally:
        cut.close()


async def test_coordinator_killed(site: Site, undisturbed: list[Seen]) -> None:
    with site.baton.redis() as server:
        (presence,) = server.scan_iter(keys.COORDINATOR_PREFIX + "*")
    last = await Stream(site.baton.url, [1, 2, 3], max_tokens=5).ended()
    streams = site.endless()
    await in_the_middle(streams)
    site.baton.kill("coordinator")
    await all_ended(streams)
    assert {stream.outcome for stream in streams} == {""}, "a broken connection is no end"
    for stream, (token_ids, *_) in zip(streams, undisturbed, strict=True):
        assert stream.token_ids[:NUM_TOKENS] == token_ids[: len(stream.token_ids)]
    await site.baton.idle(NUM_WORKERS)
    again = site.streams()
    lost = {stream.http_id: "failed" for stream in streams} | outcomes([last])
    assert last.outcome == "finished"
    with site.baton.redis() as server:
        server.pexpire(presence, 1)  # or it counts as alive for keys.PRESENCE_TTL_S
    await check_undisturbed(site, again, undisturbed)
    await site.whole(lost)


async def test_coordinator_restarts_as_planned(site: Site, undisturbed: list[Seen]) -> None:
    """Streams end, and what comes meanwhile waits for the next process."""
    streams = site.streams()
    await in_the_middle(streams)
    since = len(site.baton.lines)
    old = site.baton.pids()["coordinator"]
    site.baton.kill("coordinator", signal.SIGTERM)
    await asyncio.to_thread(site.baton.until, "draining; new connections are left", 10.0, since)
    late = site.streams(4)
    await check_undisturbed(site, streams, undisturbed)
    await all_ended(late)
    assert [stream.seen for stream in late] == undisturbed[:4]
    assert site.baton.pids()["coordinator"] != old
    await site.whole(outcomes(late))


async def test_coordinator_stalls_and_wakes(site: Site, undisturbed: list[Seen]) -> None:
    """A coordinator that was stopped does not take the workers for dead."""
    streams = site.streams()
    await in_the_middle(streams)
    workers = site.baton.pids()
    since = len(site.baton.lines)
    site.baton.kill("coordinator", signal.SIGSTOP)
    for name in ("prefill-1", "prefill-2", "decode-1", "decode-2"):
        missed = rf"^{name} .*no message from coordinator"
        await asyncio.to_thread(site.baton.until, missed, 20.0, since)
    site.baton.kill("coordinator", signal.SIGCONT)
    await check_undisturbed(site, streams, undisturbed)
    assert site.baton.pids() == workers


async def test_redis_stalls_and_wakes(site: Site, undisturbed: list[Seen]) -> None:
    streams = site.streams()
    await in_the_middle(streams)
    os.kill(site.redis.pid, signal.SIGSTOP)
    try:
        await all_ended(streams)
        await eventually(lambda: redis_is(site, connected=False), "Redis missed")
    finally:
        os.kill(site.redis.pid, signal.SIGCONT)
    await check_undisturbed(site, streams, undisturbed)


async def test_redis_gone_and_back_empty(site: Site, undisturbed: list[Seen]) -> None:
    streams = site.streams()
    await in_the_middle(streams)
    site.redis.stop(0.0)
    await all_ended(streams)
    later = Stream(site.baton.url, [1, 2, 3], max_tokens=5)
    assert (await later.ended()).outcome == "finished"
    await eventually(lambda: redis_is(site, connected=False), "Redis missed")
    site.redis = LocalRedis(site.folder)
    site.redis.start()
    await eventually(lambda: redis_is(site, connected=True), "Redis back")
    await check_undisturbed(site, [*streams], undisturbed)
    await site.whole(outcomes([later]))


async def redis_is(site: Site, *, connected: bool) -> None:
    async with httpx.AsyncClient(base_url=site.baton.url, timeout=5.0) as http:
        ready = await http.get("/ready")
        metrics = await http.get("/metrics")
    assert ready.status_code == 200
    assert ready.json()["redis_connected"] is connected
    assert f"baton_redis_connected {float(connected)}" in metrics.text


async def test_clients_leave(site: Site, undisturbed: list[Seen]) -> None:
    staying, leaving = site.streams(6), site.endless()
    plain = [asyncio.create_task(_unstreamed(site.baton.url, f"plain-{i}")) for i in range(4)]
    await in_the_middle(leaving)
    assert (await site.baton.status())["running"] >= len(leaving) + len(plain)
    for stream in leaving:
        await stream.disconnect()
    for task in plain:
        task.cancel()
    await all_ended(staying)
    assert [stream.seen for stream in staying] == undisturbed[:6]
    left = {f"plain-{i}": "cancelled" for i in range(4)}
    await site.whole(outcomes(staying + leaving) | left)


async def _unstreamed(url: str, http_id: str) -> httpx.Response:
    """A client that gets nothing before the end."""
    body = {"prompt": [1] * 300, "max_tokens": LONG - 1000, "ignore_eos": True}
    headers = {"X-Request-Id": http_id}
    async with httpx.AsyncClient(timeout=60.0, headers=headers) as http:
        return await http.post(f"{url}/v1/completions", json=body)
