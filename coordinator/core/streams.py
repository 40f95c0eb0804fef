"""The tokens of one request, handed from the hub to the HTTP edge. One event loop, no locks."""

import asyncio
from collections import deque
from collections.abc import Callable

from coordinator.core.contract import GenerationFailed, Token
from coordinator.core.open_tokens import Hold


class Stream:
    """A TokenStream: fed by the hub, drained by the edge.

    At most ``max_tokens`` entries are ever waiting; ``hold`` counts them until ``cancel``, which
    the edge calls when the response is over, however it ended.
    """

    def __init__(
        self, hold: Hold, stop_early: Callable[[], None], cancel: Callable[[], None]
    ) -> None:
        self._hold = hold
        self._tokens: deque[Token] = deque()
        self._woken = asyncio.Event()
        self._ended = False
        self._failure: GenerationFailed | None = None
        self._stop_early = stop_early
        self._cancel = cancel

    def push(self, token: Token) -> None:
        self._tokens.append(token)
        self._hold.came(token)
        self._woken.set()

    def end(self, failure: GenerationFailed | None = None) -> None:
        self._ended = True
        self._failure = failure
        self._woken.set()

    def __aiter__(self) -> "Stream":
        return self

    async def __anext__(self) -> Token:
        while not self._tokens:
            if self._failure is not None:
                raise self._failure
            if self._ended:
                raise StopAsyncIteration
            self._woken.clear()
            await self._woken.wait()
        token = self._tokens.popleft()
        self._hold.was_read(token)
        return token

    def stop_early(self) -> None:
        self._stop_early()

    def cancel(self) -> None:
        self._hold.release()
        self._cancel()
