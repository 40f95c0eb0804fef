"""Redis's post: our own server, started again whenever it dies, or somebody else's."""

import os
from pathlib import Path
from typing import Protocol

from deploy.redis_server import LocalRedis
from deploy.restarts import Restarts
from transport.wire.errors import BatonError


class RedisPost(Protocol):
    """The Redis that the services use, at ``url``. ``pidfd`` is readable once it is dead and
    valid until ``vacate``; None where there is none to watch. Nothing here keeps a clock."""

    url: str
    pid: int | None
    pidfd: int | None
    start_at: float | None

    def start(self, now: float) -> None:
        """Raises BatonError when it cannot start."""

    def vacate(self, now: float) -> float:
        """It died, or did not start; returns the seconds until the next start."""

    def stop(self, deadline_s: float) -> None:
        """End it and remove its files."""


class ForeignRedis:
    """A Redis that somebody else runs."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.pid: int | None = None
        self.pidfd: int | None = None
        self.start_at: float | None = None

    def start(self, now: float) -> None:
        pass

    def vacate(self, now: float) -> float:
        raise AssertionError("nobody watches a foreign Redis")

    def stop(self, deadline_s: float) -> None:
        pass


class OwnRedis:
    """A server in ``folder``; its successors load the file that it left."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._server = LocalRedis(folder, keep_data=True)
        self._restarts = Restarts(max_failed_starts=None)
        self._ready_at: float | None = None
        self.url = self._server.url
        self.pid: int | None = None
        self.pidfd: int | None = None
        self.start_at: float | None = None

    def start(self, now: float) -> None:
        self.start_at = None
        self._server.start()
        self.pid = self._server.pid
        try:
            self.pidfd = os.pidfd_open(self.pid)
        except ProcessLookupError as error:
            raise BatonError(f"Redis died at once; it said:\n{self._server.log}") from error
        self._ready_at = now

    def vacate(self, now: float) -> float:
        self.stop(0.0)
        self._server = LocalRedis(self._folder, keep_data=True)
        ready_for_s = None if self._ready_at is None else now - self._ready_at
        self._ready_at = None
        delay_s = self._restarts.died(ready_for_s=ready_for_s)
        assert delay_s is not None
        self.start_at = now + delay_s
        return delay_s

    def stop(self, deadline_s: float) -> None:
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = self.pid = None
        self._server.stop(deadline_s)
