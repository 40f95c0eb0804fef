"""Work of many requests at once, a few of them a turn of the event loop.

Hundreds of connections that all have a request ready would otherwise have it served in one turn,
however little each takes, and running streams stand still for as long.
"""

import asyncio
from collections import deque

from starlette.types import ASGIApp, Receive, Scope, Send

A_TURN = 8  # 2 to 4 ms of work, as requests for a status or a page go


class Turns:
    """Lets ``A_TURN`` callers go on, and the others, in the order they came, after all else that is
    ready has had its turn of the loop."""

    def __init__(self) -> None:
        self._left = A_TURN
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._turning = False

    async def wait(self) -> None:
        """Until it is the caller's turn; at once while few come."""
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
    """The middleware that lets requests begin ``A_TURN`` at a time."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._turns = Turns()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._turns.wait()
        await self._app(scope, receive, send)
