"""Responses that wait until Redis has the end of their requests, and when that is worth the wait.

The last byte of a response waits for its record, for a short time. While Redis is slow none waits:
a write is late, or one was too late for an end and none has been quick since.
"""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class Confirmations:
    """Ends that are waited for, each for at most ``max_wait_s``. All on one event loop, without
    locks."""

    def __init__(self, max_wait_s: float) -> None:
        self._max_wait_s = max_wait_s
        self._awaited: dict[str, asyncio.Future[None]] = {}
        self._was_late = False
        self._writing_since: float | None = None

    @property
    def late(self) -> bool:
        """Whether Redis is slow: a wait now would probably be in vain."""
        since = self._writing_since
        return self._was_late or (since is not None and self._passed(since))

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Records are being written."""
        began = self._writing_since = time.monotonic()
        try:
            yield
        finally:
            self._writing_since = None
        if not self._passed(began):
            self._was_late = False

    async def wait(self, request_ids: Sequence[str]) -> None:
        """Return once ``confirm`` was called for each of them, or ``give_up``, or after
        ``max_wait_s``."""
        futures = [self._future(request_id) for request_id in request_ids]
        try:
            _, late = await asyncio.wait(futures, timeout=self._max_wait_s)
            if late:
                self._was_late = True
        finally:
            for request_id in request_ids:
                self._awaited.pop(request_id, None)

    def confirm(self, request_id: str) -> None:
        """Redis has the end of the request."""
        future = self._awaited.get(request_id)
        if future is not None and not future.done():
            future.set_result(None)

    def give_up(self) -> None:
        """Let all go on: the confirmations will take long."""
        for request_id in self._awaited:
            self.confirm(request_id)

    def _passed(self, since: float) -> bool:
        return time.monotonic() - since > self._max_wait_s

    def _future(self, request_id: str) -> asyncio.Future[None]:
        new = asyncio.get_running_loop().create_future()
        return self._awaited.setdefault(request_id, new)
