"""Lets the end of a response wait until Redis has recorded it, as long as Redis is quick.

The last byte of a response waits for its record, for a short time. While Redis is slow, no response
waits: a write is late, or a write was too late for an end and no write has been quick since.
"""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class Confirmations:
    """The request ends that responses wait for, each for at most ``max_wait_s``. All calls are on
    one event loop, so there are no locks."""

    def __init__(self, max_wait_s: float) -> None:
        self._max_wait_s = max_wait_s
        self._awaited: dict[str, asyncio.Future[None]] = {}
        self._was_late = False
        self._writing_since: float | None = None

    @property
    def late(self) -> bool:
        """True if Redis is slow, so that a wait now would probably time out."""
        since = self._writing_since
        return self._was_late or (since is not None and self._passed(since))

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Context in which records are being written; measures how long the write takes."""
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
        """Wake the responses that wait for this request: Redis has its end."""
        future = self._awaited.get(request_id)
        if future is not None and not future.done():
            future.set_result(None)

    def give_up(self) -> None:
        """Wake every waiting response, because the confirmations will take long."""
        for request_id in self._awaited:
            self.confirm(request_id)

    def _passed(self, since: float) -> bool:
        return time.monotonic() - since > self._max_wait_s

    def _future(self, request_id: str) -> asyncio.Future[None]:
        new = asyncio.get_running_loop().create_future()
        return self._awaited.setdefault(request_id, new)
