"""Periodic work in a thread, for loops that must not wait for it."""

import threading
import time
from collections.abc import Callable


class SteadyThread:
    """Calls ``work`` at once and then every ``period_s`` seconds of ``clock``, until ``stop`` or
    until ``work`` returns False. Runs from ``start`` on, and does not keep the process alive."""

    def __init__(
        self,
        name: str,
        work: Callable[[], bool],
        *,
        period_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if period_s <= 0:
            raise ValueError(f"period_s: {period_s} is not positive")
        self._work = work
        self._period_s = period_s
        self._clock = clock
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, within_s: float) -> bool:
        """End the thread; returns True if it ended within ``within_s``. A thread that hangs is left
        running."""
        self._stop.set()
        self._thread.join(within_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        due_at = self._clock()
        while not self._stop.wait(max(0.0, due_at - self._clock())) and self._work():
            due_at = max(due_at + self._period_s, self._clock())
