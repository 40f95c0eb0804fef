"""The closed loop: how many are open, what is counted, and when it gives up."""

import asyncio

import pytest

from bench.cannot_measure import CannotMeasure
from bench.gpu.load import Answer, Load, RequestFailed


async def pause(seconds: float) -> bool:
    """A run that nobody stops, in which time flies."""
    await asyncio.sleep(0)
    return False


class Server:
    """Answers when told to."""

    def __init__(self) -> None:
        self.open = 0
        self.gate = asyncio.Semaphore(0)
        self.arrived = asyncio.Condition()

    async def generate(self) -> Answer:
        self.open += 1
        async with self.arrived:
            self.arrived.notify_all()
        try:
            await self.gate.acquire()
        finally:
            self.open -= 1
        return Answer(10, 20)

    async def holds(self, number: int) -> None:
        async with asyncio.timeout(5.0), self.arrived:
            await self.arrived.wait_for(lambda: self.open == number)


async def test_it_keeps_as_many_open_as_it_is_told() -> None:
    server = Server()
    load = Load(server.generate)
    load.set_concurrency(3)
    await server.holds(3)
    load.set_concurrency(5)
    await server.holds(5)
    server.gate.release()
    await load.until_answered(1, limit_s=5.0)
    await server.holds(5)
    for _ in range(5):
        server.gate.release()
    await load.stop(5.0)
    assert server.open == 0
    assert [span.answer for span in load.spans] == [Answer(10, 20)] * 6
    assert all(span.begin_s <= span.end_s for span in load.spans)


async def test_what_is_still_open_after_the_grace_is_dropped_and_not_counted() -> None:
    server = Server()
    load = Load(server.generate)
    load.set_concurrency(2)
    await server.holds(2)
    await load.stop(0.0)
    assert (server.open, load.spans, load.failures) == (0, [], [])


async def test_a_server_that_only_fails_ends_the_run_with_its_words() -> None:
    async def generate() -> Answer:
        raise RequestFailed("HTTP 500: out of order")

    load = Load(generate, give_up_after=4)
    load.set_concurrency(2)
    with pytest.raises(CannotMeasure, match="in a row failed; the last: HTTP 500: out of order"):
        await load.hold(60.0, pause)
    await load.stop(5.0)


async def test_a_failure_now_and_then_is_counted_and_the_run_goes_on() -> None:
    turn = 0

    async def generate() -> Answer:
        nonlocal turn
        turn += 1
        await asyncio.sleep(0)
        if turn % 2:
            raise RequestFailed("connection lost")
        return Answer(1, 1)

    load = Load(generate, give_up_after=3)
    load.set_concurrency(1)
    await load.until_answered(5, limit_s=5.0)
    await load.stop(5.0)
    assert len(load.failures) >= 5


async def test_a_server_that_stalls_ends_the_run_in_time() -> None:
    load = Load(Server().generate)
    load.set_concurrency(2)
    with pytest.raises(CannotMeasure, match="0 of 4 requests were answered within 0 s"):
        await load.until_answered(4, limit_s=0.01)
    await load.stop(0.0)
