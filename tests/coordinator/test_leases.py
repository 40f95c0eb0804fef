"""One GPU, one holder: whoever asks, dies, comes back, or finds Redis empty."""

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis import Redis

from coordinator.core.connection_monitor import ConnectionMonitor
from coordinator.record import keys, lease_scripts
from coordinator.record.leases import Leases
from coordinator.record.store import Store
from coordinator.record.store_limits import StoreLimits
from tests.coordinator.redis_scripts import load, run
from tests.e2e.waiting import eventually
from tests.local_redis import LocalRedis
from transport.wire.channel import CoordinatorChannel, WorkerChannel
from transport.wire.claim import ClaimDenied, claim_gpu
from transport.wire.errors import DeadlineExceeded
from transport.wire.messages import Claim, Denied, Granted, Hello

GPUS = ("GPU-a", "GPU-b", "GPU-c")
HOLDERS = ("decode-1", "decode-2", "prefill-1", "prefill-2", "colocated-1")
TTL_S = 0.5
FAST = StoreLimits(
    call_timeout_s=0.3, heartbeat_s=0.1, presence_ttl_s=TTL_S, backoff_min_s=0.02, backoff_max_s=0.1
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRedis]:
    folder = tmp_path_factory.mktemp("redis")
    folder.chmod(0o700)
    local = LocalRedis(folder)
    local.start()
    yield local
    local.stop()


@pytest.fixture
def redis(server: LocalRedis) -> Iterator[Redis]:
    with Redis.from_url(server.url, decode_responses=True) as client:
        client.flushall()
        load(client)
        yield client


@pytest.fixture
async def make_store(server: LocalRedis, redis: Redis) -> AsyncIterator[Callable[[str], Awaitable]]:
    made: list[Store] = []

    async def make(instance: str) -> Store:
        store = Store(server.url, instance, "baton/2", limits=FAST)
        await store.start()
        made.append(store)
        return store

    yield make
    for store in made:
        await store.close(1.0)


def holders(redis: Redis, gpu: str) -> set[str]:
    return set(redis.hkeys(keys.lease(gpu))) - {"share"}


# ---- the policy, as Redis runs it

claims = st.tuples(
    st.just("claim"), st.sampled_from(HOLDERS),
    st.permutations(GPUS).flatmap(lambda p: st.integers(1, 3).map(lambda n: tuple(p[:n]))),
    st.integers(1, 3),
)  # fmt: skip
ends = st.tuples(st.sampled_from(["release", "expire"]), st.sampled_from(HOLDERS))


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(events=st.lists(claims | ends, max_size=30))
def test_no_gpu_has_more_holders_than_they_agreed_on(redis: Redis, events: list) -> None:
    redis.delete(*map(keys.lease, GPUS))
    held: dict[str, dict[str, int]] = {gpu: {} for gpu in GPUS}  # share by holder
    for kind, holder, *claim in events:
        if kind == "claim":
            wanted, share = claim
            fits = [
                gpu for gpu in wanted
                if not held[gpu] or (set(held[gpu].values()) == {share} and len(held[gpu]) < share)
            ]  # fmt: skip
            mine = [gpu for gpu in wanted if holder in held[gpu]]
            number, *said = run(redis, lease_scripts.claim(holder, wanted, share, 60.0))
            got = wanted[number - 1] if number else None
            if mine:
                assert got == mine[0]
            elif not fits:
                assert got is None
                assert [set(by.split(" and ")) for by in said] == [set(held[g]) for g in wanted]
            else:
                fewest = min(len(held[gpu]) for gpu in fits)
                assert got == next(gpu for gpu in fits if len(held[gpu]) == fewest)
            if got is not None:
                held[got][holder] = held[got].get(holder, share)
                redis.hset(keys.lease(got), "share", held[got][holder])
        for gpu in GPUS if kind != "claim" else ():
            if held[gpu].pop(holder, None) is None:
                continue
            if kind == "release":
                run(redis, lease_scripts.release(holder, gpu))
            else:
                redis.hset(keys.lease(gpu), holder, "1")
        for gpu in GPUS:
            assert len(held[gpu]) <= min(held[gpu].values(), default=0) or not held[gpu]


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(marked=st.sets(st.sampled_from(GPUS)), held=st.sets(st.sampled_from(GPUS)))
def test_who_claims_gets_no_marked_gpu_and_who_holds_one_keeps_it(
    redis: Redis, marked: set, held: set
) -> None:
    redis.delete(*map(keys.lease, GPUS), *map(keys.unfit, GPUS))
    for gpu in held:
        assert run(redis, lease_scripts.renew(f"on {gpu}", gpu, 1, 60.0)) == [1, ""]
    for gpu in marked:
        redis.set(keys.unfit(gpu), f"why {gpu}", px=60_000)
    number, *said = run(redis, lease_scripts.claim("decode-1", GPUS, 1, 60.0))
    fit = [gpu for gpu in GPUS if gpu not in held | marked]
    assert number == (GPUS.index(fit[0]) + 1 if fit else 0)
    assert said[:3] == [f"on {gpu}" if gpu in held else "" for gpu in GPUS]
    where = [gpu for gpu in GPUS if gpu in marked]
    assert [GPUS[each - 1] for each in said[3::3]] == where
    assert said[4::3] == [f"why {gpu}" for gpu in where]
    assert all(59_000 < left_ms <= 60_000 for left_ms in said[5::3])
    for gpu in held:
        assert run(redis, lease_scripts.renew(f"on {gpu}", gpu, 1, 60.0))[0] == 1
        again = run(redis, lease_scripts.claim(f"on {gpu}", GPUS, 1, 60.0))
        assert GPUS[again[0] - 1] == gpu


# ---- two coordinators on one Redis


async def test_two_coordinators_never_give_the_same_gpu(redis: Redis, make_store) -> None:
    one, other = await make_store("c1"), await make_store("c2")
    claims = [store.claim_gpu(f"decode-{i}", GPUS, 1) for i, store in enumerate([one, other] * 4)]
    answers = await asyncio.gather(*claims)
    granted = [gpu for gpu, _ in answers if gpu]
    assert sorted(granted) == sorted(GPUS)
    refused = [reason for gpu, reason in answers if not gpu]
    assert len(refused) == 5
    assert all("GPU-a is held by decode-" in reason for reason in refused)


async def test_a_lease_lives_while_it_is_renewed_and_expires_with_its_coordinator(
    redis: Redis, make_store
) -> None:
    one, other = await make_store("c1"), await make_store("c2")
    assert await one.claim_gpu("decode-1", ("GPU-a",), 1) == ("GPU-a", "")
    one.hold_gpu("decode-1", "GPU-a", 1)
    first_end = float(redis.hget(keys.lease("GPU-a"), "decode-1"))

    async def renewed() -> None:
        assert float(redis.hget(keys.lease("GPU-a"), "decode-1")) > first_end + 2e3 * TTL_S

    await eventually(renewed, "renewed beyond two times to live")
    assert (await other.claim_gpu("decode-2", ("GPU-a",), 1))[0] == ""
    assert one._writer._task is not None
    one._writer._task.cancel()  # as kill -9 would end it
    began = time.monotonic()

    async def free() -> None:
        assert (await other.claim_gpu("decode-2", ("GPU-a",), 1))[0] == "GPU-a"

    await eventually(free, "free after its time to live")
    assert time.monotonic() - began < 3 * TTL_S


async def test_a_released_gpu_is_free_at_once(redis: Redis, make_store) -> None:
    store = await make_store("c1")
    await store.claim_gpu("decode-1", ("GPU-a",), 1)
    store.hold_gpu("decode-1", "GPU-a", 1)
    store.release_gpu("decode-1")

    async def free() -> None:
        assert holders(redis, "GPU-a") == set()

    await eventually(free, "released", deadline_s=TTL_S / 2)


async def test_leases_are_taken_again_when_redis_comes_back_empty(redis: Redis, make_store) -> None:
    store = await make_store("c1")
    await store.claim_gpu("decode-1", ("GPU-a",), 1)
    store.hold_gpu("decode-1", "GPU-a", 1)
    redis.flushall()

    async def back() -> None:
        assert holders(redis, "GPU-a") == {"decode-1"}

    await eventually(back, "leased again")


# ---- workers and their coordinator

WORKER = """
import sys, time
from transport.wire.channel import WorkerChannel
from transport.wire.claim import claim_gpu
from transport.wire.messages import Claim
endpoint, instance, gpu = sys.argv[1:]
channel = WorkerChannel(endpoint, instance)
print(claim_gpu(channel, Claim(instance, (gpu,)), timeout_s=10.0, clock=time.monotonic), flush=True)
sys.stdin.read()
"""


class Desk:
    """A coordinator's channel and its leases, ticking fast; ``close`` ends it."""

    def __init__(self, store: Store) -> None:
        self.channel = CoordinatorChannel("ipc://*")
        self.leases = Leases(store, self.channel.send)
        self.reach = ConnectionMonitor(self.channel.send, "c1")
        self._tasks = [asyncio.create_task(self._receive()), asyncio.create_task(self._tick())]

    async def _receive(self) -> None:
        while True:
            _, message = await self.channel.receive()
            if isinstance(message, Claim):
                self.leases.claim(message)
            elif isinstance(message, Hello):
                self.leases.keep(message)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(0.05)
            self.leases.end(self.reach.beat(self.leases.holders))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        self.channel.close()


@pytest.fixture
async def desk(make_store) -> AsyncIterator[Desk]:
    desk = Desk(await make_store("c1"))
    yield desk
    await desk.close()


def ask(desk: Desk, instance: str, *gpus: str, timeout_s: float, share: int = 1) -> str:
    channel = WorkerChannel(desk.channel.endpoint, instance)
    try:
        claim = Claim(instance, gpus, share)
        return claim_gpu(channel, claim, timeout_s=timeout_s, clock=time.monotonic)
    finally:
        channel.close()


def start_worker(desk: Desk, instance: str, gpu: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, desk.channel.endpoint, instance, gpu],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2],
    )  # fmt: skip


async def test_a_killed_holders_gpu_goes_to_who_waits_for_it(desk: Desk, redis: Redis) -> None:
    with start_worker(desk, "decode-1", "GPU-a") as holder:
        assert await asyncio.to_thread(holder.stdout.readline) == "GPU-a\n"
        assert holders(redis, "GPU-a") == {"decode-1"}
        with pytest.raises(ClaimDenied, match="GPU-a is held by decode-1"):
            await asyncio.to_thread(ask, desk, "decode-2", "GPU-a", timeout_s=0.3)
        assert await asyncio.to_thread(ask, desk, "decode-3", *GPUS, timeout_s=5.0) == "GPU-b"
        waiting = asyncio.create_task(
            asyncio.to_thread(ask, desk, "decode-4", "GPU-a", timeout_s=10.0)
        )
        await asyncio.sleep(0)
        holder.send_signal(signal.SIGKILL)
        assert await waiting == "GPU-a"


async def test_workers_that_say_so_share_a_gpu(desk: Desk, redis: Redis) -> None:
    answers: list[str] = []
    desk.leases._send = lambda instance, message: answers.append((instance, message)) or True
    for number in range(3):
        desk.leases.claim(Claim(f"decode-{number}", ("GPU-a",), 2))

    async def answered() -> None:
        assert len([a for a in answers if isinstance(a[1], Granted | Denied)]) == 3

    await eventually(answered, "three answers")
    kinds = {instance: type(message) for instance, message in answers
             if isinstance(message, Granted | Denied)}  # fmt: skip
    assert sorted(kind.__name__ for kind in kinds.values()) == ["Denied", "Granted", "Granted"]
    assert len(holders(redis, "GPU-a")) == 2


async def test_a_worker_that_comes_from_another_coordinator_keeps_its_gpu(
    desk: Desk, redis: Redis
) -> None:
    desk.reach._send = lambda instance, message: True  # it is connected
    hello = Hello("decode-1", "decode", "m", "cuda", 1, 1, 1, None, gpu="GPU-c")
    desk.leases.keep(hello)

    async def kept() -> None:
        assert holders(redis, "GPU-c") == {"decode-1"}

    await eventually(kept, "leased")


def test_without_a_coordinator_the_claim_says_whom_it_waited_for(tmp_path: Path) -> None:
    channel = WorkerChannel(f"ipc://{tmp_path}/nobody", "decode-1")
    with pytest.raises(DeadlineExceeded, match=r"decode-1 waited 0\.2 s for a GPU from the coord"):
        claim_gpu(channel, Claim("decode-1", GPUS), timeout_s=0.2, clock=time.monotonic)
    channel.close()


# ---- GPUs that are unfit

XID = "Xid 48: an uncorrected memory error"


async def test_the_successor_of_a_worker_on_an_unfit_gpu_gets_another_one(
    desk: Desk, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    with start_worker(desk, "decode-1", "GPU-a") as holder:
        assert await asyncio.to_thread(holder.stdout.readline) == "GPU-a\n"
        desk.leases.unfit("decode-1", XID)

        async def marked() -> None:
            assert redis.get(keys.unfit("GPU-a")) == XID
            assert 3_500_000 < redis.pttl(keys.unfit("GPU-a")) <= 3_600_000

        await eventually(marked, "marked for an hour")
        redis.pexpire(keys.unfit("GPU-a"), 60_000)  # as if its worker had stayed for 59 minutes
        holder.send_signal(signal.SIGKILL)

        async def released() -> None:
            assert holders(redis, "GPU-a") == set()

        await eventually(released, "its lease has ended")
        await marked()
    assert "decode-1 finds GPU GPU-a unfit: Xid 48" in caplog.text
    assert await asyncio.to_thread(ask, desk, "decode-2", "GPU-a", "GPU-b", timeout_s=5.0) == (
        "GPU-b"
    )
    passed_over = f"decode-2 could not have others: GPU-a is unfit for another 60 min ({XID})"
    assert passed_over in caplog.text


async def test_when_every_gpu_is_unfit_the_claim_names_them_and_says_how_to_clear_it(
    desk: Desk, redis: Redis
) -> None:
    for gpu in GPUS:
        redis.set(keys.unfit(gpu), XID, px=3_600_000)
    with pytest.raises(ClaimDenied) as denied:
        await asyncio.to_thread(ask, desk, "decode-1", *GPUS, timeout_s=0.3)
    for gpu in GPUS:
        assert f"{gpu} is unfit for another 60 min ({XID})" in str(denied.value)
    assert "held by" not in str(denied.value)
    assert "reset with nvidia-smi -r -i GPU-a,GPU-b,GPU-c, then" in str(denied.value)
    command = str(denied.value).partition("redis-cli ")[2].split()
    assert redis.execute_command(*command) == 3
    assert await asyncio.to_thread(ask, desk, "decode-1", *GPUS, timeout_s=5.0) == "GPU-a"


async def test_a_mark_ends_by_itself(server: LocalRedis, redis: Redis) -> None:
    store = Store(server.url, "c1", "baton/2", limits=replace(FAST, unfit_gpu_s=0.5))
    await store.start()
    store.mark_unfit("GPU-a", XID)

    async def marked() -> None:
        assert redis.exists(keys.unfit("GPU-a"))

    await eventually(marked, "marked")
    gpu, reason = await store.claim_gpu("decode-1", ("GPU-a",), 1)
    assert (gpu, XID in reason) == ("", True)

    async def free() -> None:
        assert await store.claim_gpu("decode-1", ("GPU-a",), 1) == ("GPU-a", "")

    await eventually(free, "free again")
    await store.close(1.0)


async def test_marks_are_made_again_when_redis_comes_back_empty(redis: Redis, make_store) -> None:
    store = await make_store("c1")
    store.mark_unfit("GPU-a", XID)

    async def marked() -> None:
        assert redis.get(keys.unfit("GPU-a")) == XID

    await eventually(marked, "marked")
    redis.flushall()
    await eventually(marked, "marked again")
    assert redis.pttl(keys.unfit("GPU-a")) > 3_500_000


async def test_a_mark_that_was_cleared_stays_so_when_redis_restarts(tmp_path: Path) -> None:
    first = LocalRedis(tmp_path / "run", keep_data=True)
    first.start()
    store = Store(first.url, "c1", "baton/2", limits=FAST)
    await store.start()
    store.mark_unfit("GPU-a", XID)
    with Redis.from_url(first.url) as redis:

        async def marked() -> None:
            assert redis.exists(keys.unfit("GPU-a"))

        await eventually(marked, "marked")
        redis.delete(keys.unfit("GPU-a"), keys.coordinator("c1"))  # its hash expires meanwhile
    first.stop()
    again = LocalRedis(tmp_path / "run")
    again.start()
    try:
        with Redis.from_url(again.url) as redis:
            store.mark_unfit("GPU-b", XID)

            async def written() -> None:
                assert store.counters.rewrites == 1
                assert redis.exists(keys.unfit("GPU-b"))

            await eventually(written, "the marks told again")
            assert not redis.exists(keys.unfit("GPU-a"))
            store.mark_unfit("GPU-a", XID)

            async def marked_anew() -> None:
                assert redis.exists(keys.unfit("GPU-a"))

            await eventually(marked_anew, "marked anew")
        await store.close(1.0)
    finally:
        again.stop()


async def test_a_mark_that_could_not_be_written_is_written_later(redis: Redis, make_store) -> None:
    store = await make_store("c1")
    redis.execute_command("CLIENT", "PAUSE", "700")  # longer than a call may take
    store.mark_unfit("GPU-a", XID)

    async def marked() -> None:
        assert redis.get(keys.unfit("GPU-a")) == XID

    async def failed() -> None:
        assert store.counters.failures > 0

    await eventually(failed, "no answer in time")
    await eventually(marked, "marked")


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("inf"), float("nan")])
def test_a_gpu_is_unfit_for_a_bounded_time(seconds: float) -> None:
    with pytest.raises(ValueError, match="unfit_gpu_s: "):
        StoreLimits(unfit_gpu_s=seconds)


# ---- what is logged


class NoneFree:
    """A store in which no GPU is free; ``reason`` says who holds them."""

    reason = "GPU-a is held by x"

    async def claim_gpu(self, holder: str, gpus: tuple[str, ...], share: int) -> tuple[str, str]:
        return "", self.reason


async def test_a_worker_that_goes_on_asking_is_logged_once_for_each_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, sent = NoneFree(), asyncio.Queue()
    leases = Leases(store, lambda instance, message: sent.put_nowait(message) is None)
    for reason in ("GPU-a is held by x", "GPU-a is held by y"):
        store.reason = reason
        for _ in range(3):
            leases.claim(Claim("decode-1", ("GPU-a",)))
            assert await asyncio.wait_for(sent.get(), 5.0) == Denied(reason)
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "decode-1 gets no GPU yet: GPU-a is held by x",
        "decode-1 gets no GPU yet: GPU-a is held by y",
    ]
