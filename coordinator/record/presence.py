"""Tracks in Redis which processes are alive: this coordinator, its workers, other coordinators."""

import logging
import time
from collections.abc import Mapping

from coordinator.record import keys, scripts
from coordinator.record.redis_link import RedisLink
from coordinator.record.scripts import Command
from transport.wire.errors import BatonError

log = logging.getLogger(__name__)


class ProtocolConflict(BatonError):
    """Another live coordinator keeps its record in the same Redis in another version."""


class Presence:
    """Keeps the keys of one coordinator and its workers alive, for ``ttl_s`` per refresh.

    Methods that talk to Redis raise RedisUnavailable.
    """

    def __init__(
        self, link: RedisLink, instance: str, protocol: str, endpoint: str, *, ttl_s: float
    ) -> None:
        self._link, self._instance, self._protocol = link, instance, protocol
        self._fields = {"started_at": str(time.time()), "endpoint": endpoint}
        self._ttl_s = ttl_s
        self._run_id: str | None = None
        self._workers: dict[str, dict[str, str]] = {}
        self._dirty_workers: set[str] = set()
        self._num_recent = 0
        self._next_recent: int | None = None
        self._dead: list[str] = []

    @property
    def dirty(self) -> bool:
        """True if ``write_workers`` has something to do."""
        return bool(self._dirty_workers)

    @property
    def has_registered(self) -> bool:
        return self._run_id is not None

    def register_worker(self, instance: str, fields: Mapping[str, str]) -> None:
        self._workers[instance] = {**fields, "coordinator": self._instance}
        self._dirty_workers.add(instance)

    def worker_gone(self, instance: str) -> None:
        if self._workers.pop(instance, None) is not None:
            self._dirty_workers.add(instance)

    @property
    def has_lost(self) -> bool:
        """True if ``fail_lost`` has something to do."""
        return bool(self._dead) or self._next_recent is not None

    async def refresh(self, num_listed: int) -> bool:
        """Refresh this coordinator's hash, find dead coordinators, and mark every worker to be
        refreshed. Returns True if the server has lost data since the last call: it does not know
        this coordinator, it was restarted, or its lists are too short (fewer recent requests than
        before, or fewer open requests of this coordinator than ``num_listed``). Raises
        ProtocolConflict."""
        join = scripts.join(self._instance, self._protocol, self._fields, self._ttl_s)
        answer, *found = await self._link.ask(join)
        if answer == "conflict":
            raise ProtocolConflict(
                f"coordinator {self._instance} speaks {self._protocol}, but coordinator "
                f"{found[0]} in the same Redis, heard of within {self._ttl_s:g} s, speaks "
                f"{found[1]}"
            )
        unlisted, num_open, num_recent, *dead = found
        run_id: str = (await self._link.ask(("INFO", "server"))).get("run_id", "")
        fewer = num_open < num_listed or num_recent < self._num_recent
        lost_data = self.has_registered and (answer == "new" or run_id != self._run_id or fewer)
        if unlisted:  # the list is new, or was removed with the dead instances that it held
            self._next_recent = 0
        self._run_id, self._dead, self._num_recent = run_id, dead, num_recent
        self._dirty_workers.update(self._workers)
        return lost_data

    async def write_workers(self) -> None:
        """Write the hashes of new or changed workers, and remove the hashes of workers that left.

        A failed write needs no retry of its own: the next ``refresh`` marks all workers, and the
        hash of a worker that left expires.
        """
        changed, self._dirty_workers = self._dirty_workers, set()
        for instance in changed:
            fields = self._workers.get(instance, {})
            key = keys.worker(instance)
            await self._link.ask(scripts.replace(key, fields, self._ttl_s))

    async def fail_lost(self, most: int) -> int:
        """Fail requests of dead coordinators, looking at up to ``most`` requests: first at their
        lists of open requests, then at the recent requests, in case such a list was lost. Returns
        how many requests were failed."""
        now = time.time()
        if self._dead:
            failed, left = await self._link.ask(scripts.fail_lost(self._dead[0], now, most))
            if not left:
                self._dead.pop(0)
                self._next_recent = 0
        elif self._next_recent is not None:
            first = self._next_recent
            failed, seen = await self._link.ask(scripts.fail_recent(first, now, most))
            self._next_recent = first + most if seen == most else None
        else:
            failed = 0
        return int(failed)

    async def leave(self) -> None:
        """Remove the keys of this coordinator and its workers."""
        workers: list[Command] = [("DEL", keys.worker(name)) for name in self._workers]
        await self._link.run([*workers, scripts.leave(self._instance)])
