"""Spreads the work of many simultaneous requests over turns of the event loop.

Hundreds of connections that all have a request ready would otherwise have it served in one turn,
however little each takes, and running streams would stand still for as long. An answer that is slow
to compute is computed once for all requests that wait for it.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from starlette.types import ASGIApp, Receive, Scope, Send

A_TURN = 8  # 2 to 4 ms of work, as requests for a status or a page go


class Turns:
    """Lets ``A_TURN`` callers continue in one turn of the event loop, in order of arrival. The
    others wait until everything else that is ready has run."""

    def __init__(self) -> None:
        self._left = A_TURN
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._turning = False

    async def wait(self) -> None:
        """Wait for the caller's turn; returns at once while there are few callers."""
        loop = asyncio.get_running_loop()
        if not self._turning:
            self._turning = True
            loop.call_soon(self._turn)
        if self._left and not self._waiting:
            self._left -= 1
            return
        mine = loop.create_future()
        self._waiting.append(mine)
        await mine

    def _turn(self) -> None:
        self._left = A_TURN
        while self._left and self._waiting:
            first = self._waiting.popleft()
            if not first.done():  # else it was cancelled
                first.set_result(None)
                self._left -= 1
        self._turning = self._left < A_TURN
        if self._turning:
            asyncio.get_running_loop().call_soon(self._turn)


class InTurns:
    """The outermost middleware: lets requests begin ``A_TURN`` at a time."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._turns = Turns()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", "the server has WebSockets and lifespans turned off"
        await self._turns.wait()
        await self._app(scope, receive, send)


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
        self._due_at = float("-inf")  # when the burst would be used up, were it asked for at once
        self._one_at_a_time = asyncio.Lock()
        self._turns = Turns()
        self._next: asyncio.Task[_T] | None = None

    async def get(self) -> _T:
        """The next answer. Raises what the computation raises; all callers that wait for it get the
        same."""
        if self._next is None:
            self._next = asyncio.create_task(self._run())
        # A caller that is cancelled must not cancel the others' answer.
        answer = await asyncio.shield(self._next)
        await self._turns.wait()  # all callers that waited go on now
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
