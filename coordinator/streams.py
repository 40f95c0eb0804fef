"""The tokens of one request, handed from the hub to the HTTP edge. One event loop, no locks."""

import asyncio
from collections import deque
from collections.abc import Callable

from coordinator.contract import GenerationFailed, Token


class Stream:
    """A TokenStream: fed by the hub, drained by the edge.

    Unbounded, since a generation is: at most ``max_tokens`` entries are ever waiting.
    """

    def __init__(self, stop_early: Callable[[], None], cancel: Callable[[], None]) -> None:
        self._tokens: deque[Token] = deque()
        self._woken = asyncio.Event()
        self._ended = False
        self._failure: GenerationFailed | None = None
        self._stop_early = stop_early
        self._cancel = cancel

    def push(self, token: Token) -> None:
        self._tokens.append(token)
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
        return self._tokens.popleft()

    def stop_early(self) -> None:
        self._stop_early()

    def cancel(self) -> None:
        self._cancel()
