"""Spreads the start of many simultaneous requests over turns of the event loop.

Hundreds of connections that all have a request ready would otherwise have it served in one turn,
however little each takes, and running streams would stand still for as long.
"""

import asyncio
from collections import deque

from starlette.types import ASGIApp, Receive, Scope, Send

STARTED_PER_TURN = 8  # 2 to 4 ms of work for requests of a status or a page


class Throttle:
    """Lets ``STARTED_PER_TURN`` callers continue in one turn of the event loop, in order of
    arrival. The others wait until everything else that is ready has run."""

    def __init__(self) -> None:
        self._left = STARTED_PER_TURN
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
        self._left = STARTED_PER_TURN
        while self._left and self._waiting:
            first = self._waiting.popleft()
            if not first.done():  # else it was cancelled
                first.set_result(None)
                self._left -= 1
        self._turning = self._left < STARTED_PER_TURN
        if self._turning:
            asyncio.get_running_loop().call_soon(self._turn)


class RequestThrottle:
    """The outermost middleware: lets requests begin ``STARTED_PER_TURN`` at a time."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._throttle = Throttle()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", "the server has WebSockets and lifespans turned off"
        await self._throttle.wait()
        await self._app(scope, receive, send)
