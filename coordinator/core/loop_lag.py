"""How late the event loop is: what every request here waits for besides its own work."""

import asyncio
import time
from collections.abc import Callable

PERIOD_S = 0.05


async def watch_lag(observe: Callable[[float], None], period_s: float = PERIOD_S) -> None:
    """Until cancelled, tell ``observe`` by how many seconds each timer of ``period_s`` was late.

    The period is short beside what is looked for: a loop that stands still for longer than it is
    seen for certain, a shorter stop by the share of the time that it takes.
    """
    while True:
        due_at = time.monotonic() + period_s
        await asyncio.sleep(period_s)
        observe(max(0.0, time.monotonic() - due_at))
