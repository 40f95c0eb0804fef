"""The coordinator's record in Redis, written off the token path.

1. ``put``, ``register_worker`` and ``worker_gone`` note what changed in memory and return.
2. One task, woken by the first change, lets a short window of more come in and writes them as
   one pipeline of compare-and-sets.
3. The same task meets the server again on every heartbeat: it refreshes this coordinator's and
   its workers' keys, and fails what coordinators that died have left open.
4. When the server stalls, dies or refuses, 1 goes on as before, and the task comes back with
   backoff. A server that has lost its data (it does not know this coordinator, or is another
   run) is told everything again: open requests, workers, and what ended a while ago.

Redis is the record, not the data path: the coordinator that holds the client's socket is the
truth, so nothing here can fail or slow a stream.
"""

import asyncio
import logging
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass

from redis.exceptions import ResponseError

from coordinator import keys, scripts
from coordinator.outbox import Outbox
from coordinator.record import RequestRecord
from coordinator.redis_link import RedisLink, RedisUnavailable
from transport.errors import BatonError

log = logging.getLogger(__name__)


class ProtocolConflict(BatonError):
    """Another live coordinator keeps its record in the same Redis in another version."""


@dataclass(frozen=True)
class StoreLimits:
    """``batch_window_s`` is how late a record may be for the sake of its batch;
    ``max_records`` bounds the memory, live requests included."""

    batch_window_s: float = 0.01
    max_batch: int = 64
    call_timeout_s: float = 2.0
    start_timeout_s: float = 1.0
    heartbeat_s: float = 2.0
    presence_ttl_s: float = keys.PRESENCE_TTL_S
    retain_s: float = 300.0
    max_records: int = 20_000
    backoff_min_s: float = 0.05
    backoff_max_s: float = 2.0


@dataclass
class StoreCounters:
    """Since the start. ``superseded``: Redis already had the record, or a newer one."""

    writes: int = 0
    superseded: int = 0
    failures: int = 0
    reconnects: int = 0
    rewrites: int = 0
    lost_failed: int = 0


class Store:
    """One per coordinator, all on the event loop's thread. ``start`` it once, ``close`` it once.

    ``protocol`` is the version of the wire and of the record. Raises ValueError for a
    ``redis_url`` that cannot be one.
    """

    def __init__(
        self,
        redis_url: str,
        instance: str,
        protocol: str,
        *,
        endpoint: str = "",
        limits: StoreLimits | None = None,
    ) -> None:
        self.limits = limits = limits or StoreLimits()
        self.instance, self.protocol = instance, protocol
        self.counters = StoreCounters()
        self._fields = {"started_at": str(time.time()), "endpoint": endpoint}
        self._link = RedisLink(redis_url, call_timeout_s=limits.call_timeout_s)
        # Readers have connections of their own: however many come, the writer is not held up.
        self._reader = RedisLink(redis_url, call_timeout_s=limits.call_timeout_s)
        self._outbox = Outbox(capacity=limits.max_records, retain_s=limits.retain_s)
        self._workers: dict[str, dict[str, str]] = {}
        self._dirty_workers: set[str] = set()
        self._changed = asyncio.Event()
        self._full = asyncio.Event()
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._run_id: str | None = None
        self._next_heartbeat = 0.0
        self._connected = False

    # ---- what the rest of the coordinator calls

    @property
    def connected(self) -> bool:
        """Whether the last exchange with Redis, at most a heartbeat and a deadline ago, worked."""
        return self._connected

    @property
    def dropped(self) -> int:
        """Records given up unwritten because ``max_records`` was reached."""
        return self._outbox.dropped

    @property
    def num_unwritten(self) -> int:
        return self._outbox.num_dirty

    async def start(self) -> None:
        """Connect, register, fail what dead coordinators left open, then write in background.

        Raises RedisUnavailable when the server has not answered within ``start_timeout_s``, and
        ProtocolConflict when a live coordinator there speaks another version.
        """
        assert self._task is None, "a store starts once"
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.limits.start_timeout_s
        last: RedisUnavailable | None = None
        try:
            while True:
                try:
                    async with asyncio.timeout_at(deadline):
                        await self._meet()
                    break
                except RedisUnavailable as error:
                    last = error
                    if error.final or loop.time() + self.limits.backoff_min_s >= deadline:
                        raise
                    await asyncio.sleep(self.limits.backoff_min_s)
                except TimeoutError:
                    raise last or self._link.silent(self.limits.start_timeout_s) from None
        except BaseException:
            await self._link.close()
            raise
        self._task = asyncio.create_task(self._run(), name="store")

    def put(self, record: RequestRecord) -> None:
        """Note the newest record of a request. O(1); neither blocks nor raises."""
        if self._outbox.put(record):
            self._note_change()

    def register_worker(self, instance: str, fields: Mapping[str, str]) -> None:
        """Keep a worker's hash alive until ``worker_gone``; again to change its fields."""
        self._workers[instance] = {**fields, "coordinator": self.instance}
        self._dirty_workers.add(instance)
        self._note_change()

    def worker_gone(self, instance: str) -> None:
        if self._workers.pop(instance, None) is not None:
            self._dirty_workers.add(instance)
            self._note_change()

    async def get(self, request_id: str) -> RequestRecord | None:
        """The newest record of any coordinator's request; None when it is unknown or long over.

        Raises RedisUnavailable when it is not this coordinator's and Redis does not answer, and
        MalformedMessage when what Redis holds is no record.
        """
        if (record := self._outbox.get(request_id)) is not None:
            return record
        fields = await self._reader.ask(("HGETALL", keys.request(request_id)))
        return RequestRecord.from_fields(fields) if fields else None

    async def close(self, deadline_s: float) -> None:
        """Write what is left, remove the keys of this coordinator and its workers, disconnect;
        give up after ``deadline_s``. Requests still open are left for others to fail."""
        self._closing.set()
        self._note_change()
        if self._task is not None:
            _, late = await asyncio.wait({self._task}, timeout=deadline_s)
            if late:
                self._task.cancel()
                await asyncio.wait(late)
                log.warning("closed without Redis: %d records unwritten", self.num_unwritten)
        self._connected = False
        await self._link.close()
        await self._reader.close()

    # ---- the writing task

    async def _run(self) -> None:
        failed_in_a_row = 0
        while True:
            try:
                if failed_in_a_row:
                    await self._meet()
                    failed_in_a_row = 0
                await self._serve()
                await self._leave()
                return
            except BatonError as error:
                if self._connected:
                    log.warning("the record in Redis lags behind: %s", error)
            except Exception:
                log.exception("the store failed; it goes on")
            self.counters.failures += 1
            failed_in_a_row += 1
            self._connected = False
            await self._link.close()
            await self._back_off(failed_in_a_row)

    async def _serve(self) -> None:
        while self._outbox.num_dirty or self._dirty_workers or not self._closing.is_set():
            await self._wait_for_changes()
            await self._write_workers()
            await self._write_records()
            if time.monotonic() >= self._next_heartbeat:
                await self._meet()

    async def _wait_for_changes(self) -> None:
        """Until a batch is there, at most until the next heartbeat."""
        if await _wait(self._changed, self._next_heartbeat - time.monotonic()):
            self._changed.clear()
            if not self._closing.is_set():
                await _wait(self._full, self.limits.batch_window_s)
        self._full.clear()

    async def _write_records(self) -> None:
        while batch := self._outbox.take(self.limits.max_batch):
            refused: ResponseError | None = None
            forgotten = False
            try:
                replies = await self._link.run([scripts.put(r, self.instance) for r in batch])
            except BaseException:
                self._outbox.give_back(batch)
                raise
            for record, reply in zip(batch, replies, strict=True):
                if isinstance(reply, ResponseError):
                    refused = reply
                elif reply == scripts.FORGOTTEN:
                    forgotten = True
                else:
                    self.counters.writes += reply == scripts.APPLIED
                    self.counters.superseded += reply == scripts.NOT_NEWER
                    self._outbox.settle(record, time.monotonic())
                    continue
                self._outbox.give_back([record])
            if refused is not None:
                raise self._link.refused(refused)
            if forgotten:
                await self._meet()

    async def _write_workers(self) -> None:
        changed = self._dirty_workers
        self._dirty_workers = set()
        ttl_s = self.limits.presence_ttl_s
        # What fails here is not tried again by itself: meeting the server anew writes all
        # workers, and the hash of one that is gone expires.
        for instance in changed:
            fields = self._workers.get(instance, {})
            await self._link.ask(scripts.replace(keys.worker(instance), fields, ttl_s))

    async def _meet(self) -> None:
        """Greet the server: refresh what says that we live, and see whether it still knows us."""
        ttl_s = self.limits.presence_ttl_s
        join = scripts.join(self.instance, self.protocol, self._fields, ttl_s)
        answer, *others = await self._link.ask(join)
        if answer == "conflict":
            raise ProtocolConflict(
                f"coordinator {self.instance} speaks {self.protocol}, but coordinator {others[0]} "
                f"in the same Redis, heard of within {ttl_s:g} s, speaks {others[1]}"
            )
        run_id: str = (await self._link.ask(("INFO", "server"))).get("run_id", "")
        if self._run_id is not None and (answer == "new" or run_id != self._run_id):
            log.warning("Redis has lost data; writing all %d known records", len(self._outbox))
            self.counters.rewrites += 1
            self._outbox.rewrite_all()
        self.counters.reconnects += self._run_id is not None and not self._connected
        self._run_id, self._connected = run_id, True
        self._dirty_workers.update(self._workers)
        self._outbox.expire(time.monotonic())
        self._next_heartbeat = time.monotonic() + self.limits.heartbeat_s
        self._note_change()
        for dead in others:
            await self._fail_lost(dead)

    async def _fail_lost(self, dead: str) -> None:
        left = True
        while left:
            most = self.limits.max_batch
            failed, left = await self._link.ask(scripts.fail_lost(dead, time.time(), most))
            self.counters.lost_failed += failed

    async def _leave(self) -> None:
        workers: list[scripts.Command] = [("DEL", keys.worker(name)) for name in self._workers]
        await self._link.run([*workers, scripts.leave(self.instance)])

    async def _back_off(self, failed_in_a_row: int) -> None:
        # Not cut short by `closing`: a server that comes back before close's deadline still
        # gets the rest.
        low, high = self.limits.backoff_min_s, self.limits.backoff_max_s
        delay_s = min(high, low * 2 ** min(failed_in_a_row - 1, 16))
        await asyncio.sleep(delay_s * random.uniform(0.5, 1.0))

    def _note_change(self) -> None:
        self._changed.set()
        if self._outbox.num_dirty >= self.limits.max_batch or self._closing.is_set():
            self._full.set()


async def _wait(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False
