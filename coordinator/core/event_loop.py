"""Short pauses of the event loop: when Python collects cyclic garbage, and how late the loop is.

A full collection stops every stream for as long as it takes, which is 0.1 s for each thousand open
requests. Objects made at start-up are never searched again, new objects are searched often and
quickly, and a full collection waits until no request is open. Ended requests hold few cycles:
reference counts free them.
"""

import asyncio
import gc
import time
from collections.abc import Callable

# Net new objects until a collection of the newest generation; such collections until one of the
# middle generation; and such until a full one: five million objects that nothing freed.
THRESHOLDS = (2_000, 5, 500)
LAG_PERIOD_S = 0.05


def freeze_startup_objects() -> None:
    """Exempt all present objects from garbage collection. Call it once, when start-up is over."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)


class Sweeper:
    """Runs a full garbage collection when no request is open, once after each time of work."""

    def __init__(self) -> None:
        self._swept_after = 0

    def tick(self, num_open: int, num_accepted: int) -> None:
        """Once per heartbeat. ``num_accepted`` counts the requests since the start."""
        if num_open == 0 and num_accepted > self._swept_after:
            self._swept_after = num_accepted
            gc.collect()


async def watch_lag(observe: Callable[[float], None], period_s: float = LAG_PERIOD_S) -> None:
    """Until cancelled, call ``observe`` with the seconds by which each timer of ``period_s`` was
    late. Every request waits for as long, besides its own work.

    A pause of the loop that is longer than the period is always seen; shorter ones are seen in
    proportion to the share of time that they take.
    """
    while True:
        due_at = time.monotonic() + period_s
        await asyncio.sleep(period_s)
        observe(max(0.0, time.monotonic() - due_at))
