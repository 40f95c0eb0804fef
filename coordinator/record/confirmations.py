"""Who waits until Redis has confirmed the end of a request."""

import asyncio
from collections.abc import Sequence


class Confirmations:
    """One event loop, no locks."""

    def __init__(self) -> None:
        self._awaited: dict[str, asyncio.Future[None]] = {}

    async def wait(self, request_ids: Sequence[str], timeout_s: float) -> bool:
        """Until ``confirm`` was called for each of them, or ``give_up``, at most ``timeout_s``;
        whether that was in time."""
        futures = [self._future(request_id) for request_id in request_ids]
        try:
            _, late = await asyncio.wait(futures, timeout=timeout_s)
            return not late
        finally:
            for request_id in request_ids:
                self._awaited.pop(request_id, None)

    def confirm(self, request_id: str) -> None:
        future = self._awaited.get(request_id)
        if future is not None and not future.done():
            future.set_result(None)

    def give_up(self) -> None:
        """Let everyone go on: what they wait for will take long."""
        for request_id in self._awaited:
            self.confirm(request_id)

    def _future(self, request_id: str) -> asyncio.Future[None]:
        new = asyncio.get_running_loop().create_future()
        return self._awaited.setdefault(request_id, new)
