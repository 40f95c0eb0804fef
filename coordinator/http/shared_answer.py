"""One answer for all requests that wait for it, if it is slow to compute."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from coordinator.http.request_throttle import Throttle

_T = TypeVar("_T")


class SharedAnswer(Generic[_T]):
    """Computes an answer for all callers that wait, at most ``burst`` times at once and then every
    ``every_s``.

    An answer is never older than the request for it: its computation began afterwards, and all
    requests that arrived meanwhile get the same answer.
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
        self._due_at = float("-inf")  # when a full burst would next be available
        self._one_at_a_time = asyncio.Lock()
        self._throttle = Throttle()
        self._next: asyncio.Task[_T] | None = None

    async def get(self) -> _T:
        """The next answer. Raises what the computation raises; all callers that wait for it get the
        same."""
        if self._next is None:
            self._next = asyncio.create_task(self._run())
        # A caller that is cancelled must not cancel the others' answer.
        answer = await asyncio.shield(self._next)
        await self._throttle.wait()  # all callers that waited continue at once
        return answer

    async def _run(self) -> _T:
        async with self._one_at_a_time:
            await asyncio.sleep(self._wait_s())
            self._next = None  # a caller from here on waits for the next one
            return await self._compute()

    def _wait_s(self) -> float:
        now = self._clock()
        self._due_at = max(self._due_at, now - self._burst * self._every_s) + self._every_s
        return max(0.0, self._due_at - now)
