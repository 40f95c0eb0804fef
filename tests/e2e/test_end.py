"""The end of ``baton up``: orderly, or by SIGKILL."""

import asyncio
import signal

from tests.e2e.conftest import Start
from tests.e2e.records import outcomes, settled
from tests.e2e.served import served
from tests.e2e.streams import Stream, all_ended, some_reach
from tests.local_redis import LocalRedis


async def test_sigterm_finishes_what_runs(start: Start, redis_server: LocalRedis) -> None:
    baton = start(served("fused"), "--redis-url", redis_server.url)
    with baton.redis() as server:
        streams = [Stream(baton.url, [1, 2, i], max_tokens=200) for i in range(8)]
        await some_reach(streams, 4, num_tokens=10)
        baton.pids()
        baton.process.send_signal(signal.SIGTERM)
        baton.until("SIGTERM: draining", 5.0)
        await all_ended(streams)
        assert [len(stream.token_ids) for stream in streams] == [200] * 8
        assert baton.process.wait(10.0) == 0
        baton.assert_nothing_left()
        await settled(server, outcomes(streams))


async def test_sigterm_fails_what_cannot_finish(start: Start, redis_server: LocalRedis) -> None:
    drain = ("--drain-timeout", "0.2")
    baton = start(served("fused"), "--redis-url", redis_server.url, *drain)
    with baton.redis() as server:
        streams = [Stream(baton.url, [1, 2, i], max_tokens=1000) for i in range(8)]
        await some_reach(streams, 4, num_tokens=10)
        assert await asyncio.to_thread(baton.stop) == 0
        await all_ended(streams)
        assert {stream.outcome for stream in streams} == {"failed"}
        assert {(stream.error or {})["code"] for stream in streams} == {"shutting_down"}
        await settled(server, outcomes(streams))


async def test_sigkill_leaves_nothing(start: Start) -> None:
    baton = start(served("fused"))
    streams = [Stream(baton.url, [1, 2, i], max_tokens=1000) for i in range(4)]
    await some_reach(streams, 2, num_tokens=10)
    baton.pids()
    baton.process.kill()
    baton.process.wait()
    await all_ended(streams)
    assert {stream.outcome for stream in streams} == {""}
    baton.assert_nothing_left(deadline_s=3.0)
