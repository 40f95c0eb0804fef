"""A loop that stands still is noticed."""

import asyncio
import time

from coordinator.core.loop_lag import watch_lag


async def test_a_loop_that_stands_still_is_late_by_as_much() -> None:
    seen: list[float] = []
    told = asyncio.Event()

    def observe(lag_s: float) -> None:
        seen.append(lag_s)
        told.set()

    watcher = asyncio.create_task(watch_lag(observe, period_s=0.01))
    await asyncio.wait_for(told.wait(), 5.0)
    told.clear()
    stood_at = time.monotonic()
    while time.monotonic() - stood_at < 0.1:
        pass
    await asyncio.wait_for(told.wait(), 5.0)
    watcher.cancel()
    assert seen[-1] >= 0.08
    assert min(seen) >= 0.0
