"""The coordinator's record in Redis, written off the token path.

``put``, ``register_worker`` and ``worker_gone`` note what changed in memory and return; one task
(store_writer.py) writes it. Redis is the record, not the data path: the coordinator that holds the
client's socket is the truth, so nothing here can fail or slow a stream. Only the last byte of a
response waits for its record, for a short time (``recorded``).
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from msgspec import structs
from redis.exceptions import ResponseError

from coordinator.record import keys
from coordinator.record.presence import Presence
from coordinator.record.record import RequestRecord
from coordinator.record.redis_link import Damage, RedisLink, is_wrong_type
from coordinator.record.response_store import ResponseStore
from coordinator.record.settings import ResponseLimits, StoreLimits
from coordinator.record.store_writer import StoreCounters, StoreWriter
from coordinator.record.write_buffer import WriteBuffer
from transport.wire.errors import MalformedMessage

_READ_A_TURN = 25  # records, of which one takes 0.2 ms to read from a reply


class Store:
    """One per coordinator, all on the event loop's thread. ``start`` it once, ``close`` it once.

    ``protocol`` is the version of the wire and of the record; ``responses`` keeps those that
    clients name later. Raises ValueError for a ``redis_url`` that cannot be one.
    """

    def __init__(
        self,
        redis_url: str,
        instance: str,
        protocol: str,
        *,
        redis_password: str = "",
        endpoint: str = "",
        limits: StoreLimits | None = None,
        response_limits: ResponseLimits | None = None,
    ) -> None:
        self.limits = limits = limits or StoreLimits()
        self.instance = instance
        self._damage = Damage()
        connect = partial(
            RedisLink,
            redis_url,
            call_timeout_s=limits.call_timeout_s,
            damage=self._damage,
            password=redis_password,
        )
        link = connect()
        # Readers have connections of their own: however many come, the writer is not held up.
        self._reader = connect()
        self.responses = ResponseStore(
            connect(), lambda: self.connected, response_limits or ResponseLimits()
        )
        self._buffer = WriteBuffer(max_ended=limits.max_ended, retain_s=limits.retain_s)
        self._presence = Presence(link, instance, protocol, endpoint, ttl_s=limits.presence_ttl_s)
        self._writer = StoreWriter(link, instance, self._buffer, self._presence, limits)

    @property
    def connected(self) -> bool:
        """Whether the last exchange with Redis, at most a heartbeat and a deadline ago, worked."""
        return self._writer.connected

    @property
    def counters(self) -> StoreCounters:
        return self._writer.counters

    @property
    def dropped(self) -> int:
        """Records given up unwritten because ``max_ended`` was reached."""
        return self._buffer.dropped

    @property
    def damage(self) -> Damage:
        return self._damage

    @property
    def num_unwritten(self) -> int:
        """Requests whose newest record is yet to be written."""
        return self._buffer.num_dirty

    async def start(self) -> None:
        """Connect and register; then write in background, and fail what dead coordinators left
        open.

        Raises RedisUnavailable when the server has not answered within ``start_timeout_s``, and
        ProtocolConflict when a live coordinator there speaks another version.
        """
        await self._writer.start()

    def put(self, record: RequestRecord) -> None:
        """Note the newest record of a request. O(1); neither blocks nor raises."""
        if self._buffer.put(record):
            self._writer.note_change()

    async def recorded(self, request_ids: Sequence[str]) -> None:
        """Return once Redis has the ends of these requests; at once where it is away or slow, and
        after ``end_wait_s`` in any case. Does not raise."""
        await self._writer.recorded(request_ids)

    def cut(self, request_id: str) -> None:
        """Note that the client of a request did not get its answer whole; no-op unless it has ended
        without its client leaving, a short time ago."""
        record = self._buffer.get(request_id)
        if record is not None and record.state in ("finished", "failed") and not record.answer_cut:
            self.put(structs.replace(record, revision=record.revision + 1, answer_cut=True))

    def register_worker(self, instance: str, fields: Mapping[str, str]) -> None:
        """Keep a worker's hash alive until ``worker_gone``; again to change its fields."""
        self._presence.register_worker(instance, fields)
        self._writer.note_change()

    def worker_gone(self, instance: str) -> None:
        self._presence.worker_gone(instance)
        self._writer.note_change()

    async def get(self, request_id: str) -> RequestRecord | None:
        """The newest record of any coordinator's request; None when it is unknown or long over.

        Raises RedisUnavailable when it is not this coordinator's and Redis does not answer, and
        MalformedMessage when what Redis holds is no record.
        """
        if (record := self._buffer.get(request_id)) is not None:
            return record
        (fields,) = await self._reader.run([("HGETALL", keys.request(request_id))])
        if isinstance(fields, ResponseError):
            if not is_wrong_type(fields):
                raise self._reader.refused(fields)
            raise MalformedMessage("a request's key in Redis holds no hash")
        return RequestRecord.from_fields(fields) if fields else None

    async def recent(self, most: int) -> list[RequestRecord]:
        """The newest records of the requests received last, of all coordinators, last one first;
        at most ``most`` of them. A record that cannot be read is left out, counted and logged.
        Raises RedisUnavailable."""
        assert 0 < most <= keys.RECENT_MAX
        (request_ids,) = await self._reader.run([("ZREVRANGE", keys.RECENT, 0, most - 1)])
        if self._is_damaged(keys.RECENT, request_ids):
            return []
        replies: list[Any] = []
        for first in range(0, len(request_ids), _READ_A_TURN):
            some = request_ids[first : first + _READ_A_TURN]
            replies += await self._reader.run([("HGETALL", keys.request(i)) for i in some])
        found: list[RequestRecord] = []
        for request_id, fields in zip(request_ids, replies, strict=True):
            if (record := self._buffer.get(request_id)) is not None:
                found.append(record)
            elif fields and not self._is_damaged(keys.request(request_id), fields):
                try:
                    found.append(RequestRecord.from_fields(fields))
                except MalformedMessage as error:
                    self._damage.unreadable(keys.request(request_id), str(error))
        return found  # what has no fields is long over, and its record gone

    def _is_damaged(self, key: str, reply: Any) -> bool:
        """Whether it was refused for the type of ``key``. Raises RedisUnavailable where it was
        refused for another reason."""
        if not isinstance(reply, ResponseError):
            return False
        if not is_wrong_type(reply):
            raise self._reader.refused(reply)
        self._damage.unreadable(key, str(reply))
        return True

    async def close(self, deadline_s: float) -> None:
        """Write what is left, remove the keys of this coordinator and its workers, disconnect;
        give up after ``deadline_s``. Requests still open are left for others to fail."""
        await self._writer.close(deadline_s)
        await self._reader.close()
        await self.responses.close()
