"""Writes the coordinator's record to Redis, and refreshes its presence there on every heartbeat.

A change wakes this one task; it waits a short time for more changes and writes them as one
pipeline of compare-and-sets. Then it fails a batch of requests that dead coordinators left open.
Neither delays a heartbeat, since the keys that it refreshes would expire. When the server stalls,
dies or refuses, the task retries with backoff. A server that has lost its data (it does not
know this coordinator, or was restarted) gets everything again: open requests, workers, and
requests that ended a short time ago.
"""

import asyncio
import logging
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

from redis.exceptions import ResponseError

from coordinator.record import scripts
from coordinator.record.confirmations import Confirmations
from coordinator.record.presence import Presence
from coordinator.record.redis_link import RedisLink, RedisUnavailable
from coordinator.record.settings import StoreLimits
from coordinator.record.write_buffer import WriteBuffer
from transport.wire.errors import BatonError

log = logging.getLogger(__name__)

_CANCEL_AGAIN_S = 0.05


@dataclass
class StoreCounters:
    """Counts of written records since the start. ``superseded``: Redis already had the record, or a
    newer one."""

    writes: int = 0
    superseded: int = 0
    failures: int = 0
    reconnects: int = 0
    rewrites: int = 0
    lost_failed: int = 0


class StoreWriter:
    """The task that writes what ``buffer`` and ``presence`` hold. ``start`` it once, ``close`` it
    once, and call ``note_change`` after each change to either."""

    def __init__(
        self,
        link: RedisLink,
        instance: str,
        buffer: WriteBuffer,
        presence: Presence,
        limits: StoreLimits,
    ) -> None:
        self.counters = StoreCounters()
        self.connected = False
        self._link = link
        self._instance = instance
        self._buffer = buffer
        self._presence = presence
        self._limits = limits
        self._confirmations = Confirmations(limits.end_wait_s)
        self._changed = asyncio.Event()
        self._full = asyncio.Event()
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._next_heartbeat = 0.0

    def note_change(self) -> None:
        self._changed.set()
        if self._buffer.num_dirty >= self._limits.max_batch or self._closing.is_set():
            self._full.set()

    async def recorded(self, request_ids: Sequence[str]) -> None:
        """Wait until Redis has the ends of these requests, at most ``end_wait_s``; return at once
        while Redis is known to be away or slow."""
        if not self.connected or self._confirmations.late or self._closing.is_set():
            return
        unwritten = [each for each in request_ids if self._buffer.prioritize(each)]
        if unwritten:
            self._changed.set()
            self._full.set()
            await self._confirmations.wait(unwritten)

    async def start(self) -> None:
        """Connect and register, then write in the background. Raises as ``Store.start`` does."""
        assert self._task is None, "a store starts once"
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._limits.start_timeout_s
        last: RedisUnavailable | None = None
        try:
            while True:
                try:
                    async with asyncio.timeout_at(deadline):
                        await self._refresh_presence()
                    self.connected = True
                    break
                except RedisUnavailable as error:
                    last = error
                    if error.final or loop.time() + self._limits.backoff_min_s >= deadline:
                        raise
                    await asyncio.sleep(self._limits.backoff_min_s)
                except TimeoutError:
                    raise last or self._link.silent(self._limits.start_timeout_s) from None
        except BaseException:
            self.connected = False
            await self._link.close()
            raise
        self._task = asyncio.create_task(self._run(), name="store")

    async def close(self, deadline_s: float) -> None:
        """Write the remaining records, remove the presence, disconnect, within ``deadline_s``."""
        self._closing.set()
        self.note_change()
        if self._task is not None:
            _, late = await asyncio.wait({self._task}, timeout=deadline_s)
            if late:
                # NOTE: redis-py sends inside asyncio.wait_for, which until Python 3.12 may lose a
                # cancellation.
                while late:
                    self._task.cancel()
                    _, late = await asyncio.wait({self._task}, timeout=_CANCEL_AGAIN_S)
                num_dirty = self._buffer.num_dirty
                log.warning("stopped while Redis was away: %d records unwritten", num_dirty)
        self.connected = False
        await self._link.close()

    async def _run(self) -> None:
        failed_in_a_row = 0
        while True:
            try:
                if failed_in_a_row:
                    await self._refresh_presence()
                    await self._write_all()
                    self._is_back()
                    failed_in_a_row = 0
                await self._serve()
                await self._presence.leave()
                return
            except BatonError as error:
                if self.connected:
                    log.warning("the record in Redis lags behind: %s", error)
            except Exception:
                log.exception("writing the record failed; trying again")
            self.counters.failures += 1
            failed_in_a_row += 1
            self.connected = False
            self._confirmations.give_up()
            await self._link.close()
            await self._back_off(failed_in_a_row)

    async def _serve(self) -> None:
        while self._dirty or not self._closing.is_set():
            await self._wait_for_changes()
            await self._write_all()
            if self._heartbeat_due:
                await self._refresh_presence()

    async def _write_all(self) -> None:
        await self._presence.write_workers()
        await self._write_records()
        await self._fail_lost()

    @property
    def _heartbeat_due(self) -> bool:
        return time.monotonic() >= self._next_heartbeat

    @property
    def _dirty(self) -> bool:
        return bool(self._buffer.num_dirty) or self._presence.dirty

    async def _wait_for_changes(self) -> None:
        """Wait until a batch is there, at most until the next heartbeat."""
        if await _wait(self._changed, self._next_heartbeat - time.monotonic()):
            self._changed.clear()
            if not self._closing.is_set():
                await _wait(self._full, self._limits.batch_window_s)
        self._full.clear()

    async def _write_records(self) -> None:
        """Write the records that are dirty now, stopping for a due heartbeat. Records that arrive
        meanwhile are left for the next batch."""
        while batch := self._buffer.take(self._limits.max_batch):
            refused: ResponseError | None = None
            forgotten = False
            try:
                with self._confirmations.writing():
                    replies = await self._link.run([scripts.put(r, self._instance) for r in batch])
            except BaseException:
                self._buffer.give_back(batch)
                raise
            for record, reply in zip(batch, replies, strict=True):
                if isinstance(reply, ResponseError):
                    refused = reply
                elif reply == scripts.FORGOTTEN:
                    forgotten = True
                else:
                    self.counters.writes += reply == scripts.APPLIED
                    self.counters.superseded += reply in (scripts.SAME, scripts.NOT_NEWER)
                    listed = not record.ended and reply != scripts.NOT_NEWER
                    self._buffer.settle(record, time.monotonic(), listed=listed)
                    if record.ended:
                        self._confirmations.confirm(record.request_id)
                    continue
                self._buffer.give_back([record])
            if refused is not None:
                raise self._link.refused(refused)
            if forgotten:
                await self._refresh_presence()
            if len(batch) < self._limits.max_batch:
                return
            if self._heartbeat_due:
                self.note_change()  # the other records are still to be written
                return

    async def _fail_lost(self) -> None:
        """Fail one batch of requests of dead coordinators; newer records are written before the
        next batch."""
        if self._presence.has_lost:
            most = self._limits.max_batch
            self.counters.lost_failed += await self._presence.fail_lost(most)
            if self._presence.has_lost:
                self.note_change()

    async def _refresh_presence(self) -> None:
        """Refresh this coordinator's presence, and find out whether the server has lost data."""
        if await self._presence.refresh(self._buffer.num_listed):
            log.warning("Redis has lost data; writing all %d known records", len(self._buffer))
            self.counters.rewrites += 1
            self._buffer.rewrite_all()
        self._buffer.expire(time.monotonic())
        self._next_heartbeat = time.monotonic() + self._limits.heartbeat_s
        self.note_change()

    def _is_back(self) -> None:
        """Note that Redis is back. Called after records were written, since a server that refuses
        them is not back."""
        log.warning("Redis is back; %d records to be written", self._buffer.num_dirty)
        self.counters.reconnects += 1
        self.connected = True

    async def _back_off(self, failed_in_a_row: int) -> None:
        # `closing` does not end this wait: a server that is back before the deadline of ``close``
        # still gets the remaining records.
        low, high = self._limits.backoff_min_s, self._limits.backoff_max_s
        delay_s = min(high, low * 2 ** min(failed_in_a_row - 1, 16))
        await asyncio.sleep(delay_s * random.uniform(0.5, 1.0))


async def _wait(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False
