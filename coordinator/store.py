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

from redis.exceptions import ResponseError

from coordinator import keys, scripts
from coordinator.outbox import Outbox
from coordinator.presence import Presence
from coordinator.record import RequestRecord
from coordinator.redis_link import RedisLink, RedisUnavailable
from coordinator.store_limits import StoreCounters, StoreLimits
from coordinator.unfit_gpus import UnfitGpus, how_to_clear, said
from transport.errors import BatonError

log = logging.getLogger(__name__)


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
        self.instance = instance
        self.counters = StoreCounters()
        self._link = RedisLink(redis_url, call_timeout_s=limits.call_timeout_s)
        # Readers have connections of their own: however many come, the writer is not held up.
        self._reader = RedisLink(redis_url, call_timeout_s=limits.call_timeout_s)
        self._outbox = Outbox(capacity=limits.max_records, retain_s=limits.retain_s)
        self._presence = Presence(
            self._link, instance, protocol, endpoint, ttl_s=limits.presence_ttl_s
        )
        self._unfit = UnfitGpus(self._link, for_s=limits.unfit_gpu_s)
        self._changed = asyncio.Event()
        self._full = asyncio.Event()
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
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
            self._connected = False
            await self._link.close()
            raise
        self._task = asyncio.create_task(self._run(), name="store")

    def put(self, record: RequestRecord) -> None:
        """Note the newest record of a request. O(1); neither blocks nor raises."""
        if self._outbox.put(record):
            self._note_change()

    def register_worker(self, instance: str, fields: Mapping[str, str]) -> None:
        """Keep a worker's hash alive until ``worker_gone``; again to change its fields."""
        self._presence.register_worker(instance, fields)
        self._note_change()

    def worker_gone(self, instance: str) -> None:
        self._presence.worker_gone(instance)
        self._note_change()

    async def claim_gpu(self, holder: str, gpus: tuple[str, ...], share: int) -> tuple[str, str]:
        """The one of ``gpus`` that ``holder`` has from now on for a time to live, or ""; and which
        are unfit, or without one who holds the others too. Raises RedisUnavailable."""
        if not gpus:
            return "", "no GPU was named"
        ttl_s = self.limits.presence_ttl_s
        number, *found = await self._reader.ask(scripts.claim(holder, gpus, share, ttl_s))
        holders, marks = found[: len(gpus)], found[len(gpus) :]
        unfit = [gpus[each - 1] for each in marks[::3]]
        reasons = [*map(said, unfit, marks[1::3], marks[2::3])]
        if unfit:
            reasons.append(how_to_clear(unfit))
        if number:
            return gpus[number - 1], "; ".join(reasons)
        held = [f"{gpu} is held by {by}" for gpu, by in zip(gpus, holders, strict=True) if by]
        return "", "; ".join(held + reasons)

    def hold_gpu(self, holder: str, gpu: str, share: int) -> None:
        """Renew a claim that was granted, until ``release_gpu``. When this store closes, the
        lease stays for its time to live: the worker may still be there."""
        self._presence.hold_gpu(holder, gpu, share)

    def release_gpu(self, holder: str) -> None:
        self._presence.release_gpu(holder)
        self._note_change()

    def mark_unfit(self, gpu: str, why: str) -> None:
        """Nobody may claim it from now on for ``limits.unfit_gpu_s``."""
        self._unfit.mark(gpu, why)
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

    async def recent(self, most: int) -> list[RequestRecord]:
        """The newest records of the requests received last, of all coordinators, last one first;
        at most ``most`` of them. Raises RedisUnavailable and MalformedMessage."""
        assert 0 < most <= keys.RECENT_MAX
        request_ids = await self._reader.ask(("ZREVRANGE", keys.RECENT, 0, most - 1))
        replies = await self._reader.run([("HGETALL", keys.request(i)) for i in request_ids])
        found: list[RequestRecord] = []
        for request_id, fields in zip(request_ids, replies, strict=True):
            if isinstance(fields, ResponseError):
                raise self._reader.refused(fields)
            if (record := self._outbox.get(request_id)) is not None:
                found.append(record)
            elif fields:  # else it is long over, and its record gone
                found.append(RequestRecord.from_fields(fields))
        return found

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
                await self._presence.leave()
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
        while self._dirty or not self._closing.is_set():
            await self._wait_for_changes()
            await self._presence.write_workers()
            await self._unfit.write()
            await self._presence.write_releases()
            await self._write_records()
            if time.monotonic() >= self._next_heartbeat:
                await self._meet()

    @property
    def _dirty(self) -> bool:
        return bool(self._outbox.num_dirty) or self._presence.dirty or self._unfit.dirty

    async def _wait_for_changes(self) -> None:
        """Until a batch is there, at most until the next heartbeat."""
        if await _wait(self._changed, self._next_heartbeat - time.monotonic()):
            self._changed.clear()
            if not self._closing.is_set():
                await _wait(self._full, self.limits.batch_window_s)
        self._full.clear()

    async def _write_records(self) -> None:
        """Write what is dirty now; what comes meanwhile may gather for a batch of its own."""
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
            if len(batch) < self.limits.max_batch:
                return

    async def _meet(self) -> None:
        """Greet the server: refresh what says that we live, and see whether it still knows us."""
        had_met = self._presence.has_met
        if await self._presence.meet():
            log.warning("Redis has lost data; writing all %d known records", len(self._outbox))
            self.counters.rewrites += 1
            self._outbox.rewrite_all()
            self._unfit.rewrite_all()
        if had_met and not self._connected:
            log.warning("Redis is back; writing %d records", self.num_unwritten)
            self.counters.reconnects += 1
        await self._presence.renew_leases()
        self._connected = True
        self._outbox.expire(time.monotonic())
        self._next_heartbeat = time.monotonic() + self.limits.heartbeat_s
        self._note_change()
        for dead in self._presence.dead:
            failed = await self._presence.fail_lost(dead, batch=self.limits.max_batch)
            self.counters.lost_failed += failed

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
