"""The course of the GPU benchmark, against a server that answers two requests at a time."""

import asyncio
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

from bench.gpu.plan import GpuPlan
from bench.gpu.run import run

AT_A_TIME, ANSWER_S = 2, 0.02


class Server:
    def __init__(self) -> None:
        self.open = 0
        self._places = asyncio.Semaphore(AT_A_TIME)

    async def send(self, ask: object) -> Any:
        self.open += 1
        async with self._places:
            await asyncio.sleep(ANSWER_S)
        self.open -= 1
        usage = SimpleNamespace(prompt_tokens=3, completion_tokens=5)
        return SimpleNamespace(failure=None, usage=usage)


async def test_the_hold_begins_when_nothing_waits_behind_a_higher_step() -> None:
    server, open_then = Server(), dict[str, int]()

    async def stopped_within(seconds: float) -> bool:
        await asyncio.sleep(seconds)
        return False

    def told(what: str) -> None:
        open_then[what.split()[0]] = server.open

    plan = GpuPlan(hold_s=0.3, start=2, most=16, rounds=3, least_gain=0.5, output_len=5)
    held = await run(
        cast(Any, server), "some", plan, cast(Any, nullcontext()), told, stopped_within
    )
    assert [step.concurrency for step in held.steps] == [2, 4]
    assert open_then["4"] >= 3
    assert open_then["holding"] <= 2
    during = [span for span in held.spans if held.begin_s < span.end_s < held.end_s]
    assert max(span.end_s - span.begin_s for span in during) < 3 * ANSWER_S
    assert held.failures == ()
