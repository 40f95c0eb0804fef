"""What keeps the event loop from standing still: when Python searches for cyclic garbage, and how
late the loop is.

A full search stops every stream for as long as it takes, which is 0.1 s for each thousand open
requests. What start-up made is never searched again, what is new is searched often and quickly, and
a full search waits until no request is open. Ended requests hold few cycles: reference counts free
them.
"""

import asyncio
import gc
import time
from collections.abc import Callable

# Net new objects to a search of the newest; such searches to one of the middle-aged; and those to
# a full one: five million objects that nothing freed.
THRESHOLDS = (2_000, 5, 500)
LAG_PERIOD_S = 0.05


def freeze_startup_objects() -> None:
    """To be called once, when start-up is over."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)


class Sweeper:
    """Searches in full when idle, once after work."""

    def __init__(self) -> None:
        self._swept_after = 0

    def tick(self, num_open: int, num_accepted: int) -> None:
        """``num_open`` requests are open, ``num_accepted`` have come since the start."""
        if num_open == 0 and num_accepted > self._swept_after:
            self._swept_after = num_accepted
            gc.collect()


async def watch_lag(observe: Callable[[float], None], period_s: float = LAG_PERIOD_S) -> None:
    """Until cancelled, tell ``observe`` by how many seconds each timer of ``period_s`` was late,
    which is what every request waits for besides its own work.

    The period is short beside what is looked for: a loop that stands still for longer than it is
    seen for certain, a shorter stop by the share of the time that it takes.
    """
    while True:
        due_at = time.monotonic() + period_s
        await asyncio.sleep(period_s)
        observe(max(0.0, time.monotonic() - due_at))
