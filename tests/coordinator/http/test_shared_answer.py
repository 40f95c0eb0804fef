"""One computation for all callers; none older than the call; no more than are allowed."""

import asyncio

import pytest

from coordinator.http.shared_answer import SharedAnswer


class Computed:
    """Counts its calls, and waits for ``gate`` in each."""

    def __init__(self) -> None:
        self.times = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self) -> int:
        self.times += 1
        mine = self.times
        await self.gate.wait()
        return mine


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_all_callers_share_one_answer_and_a_later_one_gets_a_newer_one() -> None:
    computed = Computed()
    computed.gate.clear()
    shared = SharedAnswer(computed, every_s=1.0, clock=lambda: 0.0)
    first = [asyncio.create_task(shared.get()) for _ in range(100)]
    await settle()
    later = [asyncio.create_task(shared.get()) for _ in range(100)]
    await settle()
    first[0].cancel()
    computed.gate.set()
    assert {await task for task in first[1:]} == {1}
    assert {await task for task in later} == {2}
    assert computed.times == 2


async def test_beyond_the_burst_a_computation_waits_for_its_time(monkeypatch) -> None:
    slept: list[float] = []
    sleep = asyncio.sleep

    async def note(seconds: float) -> None:
        slept.append(seconds)
        await sleep(0)

    monkeypatch.setattr("coordinator.http.request_throttle.asyncio.sleep", note)
    now = 100.0
    shared = SharedAnswer(Computed(), every_s=1.0, burst=2, clock=lambda: now)
    for _ in range(4):
        await shared.get()
    assert slept == [0.0, 0.0, 1.0, 2.0]
    now = 110.0
    await shared.get()
    assert slept[-1] == 0.0


async def test_a_failed_computation_fails_for_all_callers_that_wait_and_not_for_the_next() -> None:
    failing = True

    async def compute() -> int:
        if failing:
            raise RuntimeError("no answer")
        return 1

    shared = SharedAnswer(compute, every_s=0.0)
    results = await asyncio.gather(shared.get(), shared.get(), return_exceptions=True)
    assert [str(result) for result in results] == ["no answer"] * 2
    failing = False
    assert await shared.get() == 1
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await shared.get()
