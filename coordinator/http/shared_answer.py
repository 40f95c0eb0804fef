"""An answer that takes long to compute, computed once for all who wait for it."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from coordinator.http.turns import Turns

_T = TypeVar("_T")


class SharedAnswer(Generic[_T]):
    """Computes at most ``burst`` times at once and then every ``every_s``.

    An answer is never older than the question: whoever asks gets one whose computation began
    afterwards, and waits for it together with all who have asked meanwhile.
    """

    def __init__(
        self,
        compute: Callable[[], Awaitable[_T]],
        *,
        every_s: float,
        burst: int = 8,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._compute = compute
        self._every_s = every_s
        self._burst = burst
        self._clock = clock
        self._due_at = float("-inf")  # when the burst would be used up, were it asked for at once
        self._one_at_a_time = asyncio.Lock()
        self._turns = Turns()
        self._next: asyncio.Task[_T] | None = None

    async def get(self) -> _T:
        """Raises what the computation raises; all who wait for it get the same."""
        if self._next is None:
            self._next = asyncio.create_task(self._run())
        # One that leaves must not take the answer from the others.
        answer = await asyncio.shield(self._next)
        await self._turns.wait()  # all who waited go on now
        return answer

    async def _run(self) -> _T:
        async with self._one_at_a_time:
            await asyncio.sleep(self._wait_s())
            self._next = None  # who asks from here on waits for the one after this
            return await self._compute()

    def _wait_s(self) -> float:
        now = self._clock()
        self._due_at = max(self._due_at, now - self._burst * self._every_s) + self._every_s
        return max(0.0, self._due_at - now)
