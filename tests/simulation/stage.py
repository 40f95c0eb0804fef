"""Simulated time for programs that wait.

Each actor runs on a thread of its own, but only one at a time: a thread that waits gives the turn
to the one whose wait ends next, and simulated time goes on to there. So a run is the same each
time.
"""

import threading
from collections.abc import Callable
from heapq import heappop, heappush


class Over(BaseException):
    """The time of the run is over."""


class Stage:
    """Simulated time, and whose turn it is."""

    def __init__(self) -> None:
        self.now = 0.0
        self._waiting: list[tuple[float, int, threading.Semaphore]] = []
        self._count = 0
        self._over = False
        self._threads: list[threading.Thread] = []
        self.errors: list[BaseException] = []

    def act(self, actor: Callable[[], None]) -> None:
        """Let ``actor`` run from now on."""
        turn = self._wait_until(self.now)

        def run() -> None:
            turn.acquire()
            try:
                if not self._over:
                    actor()
            except Over:
                pass
            except BaseException as error:
                self.errors.append(error)
            self._next()

        self._threads.append(threading.Thread(target=run, daemon=True))
        self._threads[-1].start()

    def sleep(self, seconds: float) -> None:
        if self._over:
            raise Over
        turn = self._wait_until(self.now + seconds)
        self._next()
        turn.acquire()
        if self._over:
            raise Over

    def run(self, seconds: float) -> None:
        """Let all actors go on for so long, and then end them. Raises the first of their errors."""
        self.sleep(seconds)
        self._over = True
        for thread in self._threads:
            self._next()
            thread.join()
        if self.errors:
            raise self.errors[0]

    def _wait_until(self, time: float) -> threading.Semaphore:
        turn = threading.Semaphore(0)
        self._count += 1
        heappush(self._waiting, (time, self._count, turn))
        return turn

    def _next(self) -> None:
        if self._waiting:
            time, _, turn = heappop(self._waiting)
            self.now = max(self.now, time)
            turn.release()
