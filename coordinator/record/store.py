"""The coordinator's record in Redis, written off the token path.

``put``, ``register_worker`` and ``worker_gone`` note a change in memory and return; one task
(store_writer.py) writes it. Redis is the record, not the data path: the coordinator that holds the
client's socket is the source of truth, so nothing here can fail or slow a stream. Only the last
byte of a response waits for its record, for a short time (``recorded``).
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

_READ_A_TURN = 25  # records; parsing one from a reply takes 0.2 ms


class Store:
    """The coordinator's record in Redis. One per coordinator, all calls on the event loop's thread;
    ``start`` it once, ``close`` it once.

    ``protocol`` is the version of the wire and of the record; ``responses`` stores responses that
    clients may refer to later. Raises ValueError for a malformed ``redis_url``.
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
        # Reads use connections of their own, so that many reads do not delay the writer.
        self._reader = connect()
        self.responses = ResponseStore(
            connect(), lambda: self.connected, response_limits or ResponseLimits()
        )
        self._buffer = WriteBuffer(max_ended=limits.max_ended, retain_s=limits.retain_s)
        self._presence = Presence(link, instance, protocol, endpoint, ttl_s=limits.presence_ttl_s)
        self._writer = StoreWriter(link, instance, self._buffer, self._presence, limits)

    @property
    def connected(self) -> bool:
        """True if the last exchange with Redis, at most a heartbeat and a deadline ago, worked."""
        return self._writer.connected

    @property
    def counters(self) -> StoreCounters:
        return self._writer.counters

    @property
    def dropped(self) -> int:
        """Number of records dropped before they were written, because ``max_ended`` was reached."""
        return self._buffer.dropped

    @property
    def damage(self) -> Damage:
        return self._damage

    @property
    def num_unwritten(self) -> int:
        """Number of requests whose newest record has not been written yet."""
        return self._buffer.num_dirty

    async def start(self) -> None:
        """Connect and register; then write in the background, and fail the open requests of dead
        coordinators.

        Raises RedisUnavailable when the server has not answered within ``start_timeout_s``, and
        ProtocolConflict when a live coordinator there speaks another version.
        """
        await self._writer.start()

    def put(self, record: RequestRecord) -> None:
        """Note the newest record of a request. O(1); neither blocks nor raises."""
        if self._buffer.put(record):
            self._writer.note_change()

    async def recorded(self, request_ids: Sequence[str]) -> None:
        """Wait until Redis has the ends of these requests, at most ``end_wait_s``; return at once
        while Redis is away or slow. Does not raise."""
        await self._writer.recorded(request_ids)

    def cut(self, request_id: str) -> None:
        """Note that the client of a request did not receive its whole answer. No effect unless the
        request ended a short time ago, and not because its client left."""
        record = self._buffer.get(request_id)
        if record is not None and record.state in ("finished", "failed") and not record.answer_cut:
            self.put(structs.replace(record, revision=record.revision + 1, answer_cut=True))

    def register_worker(self, instance: str, fields: Mapping[str, str]) -> None:
        """Keep a worker's hash alive until ``worker_gone``; call it again to change its fields."""
        self._presence.register_worker(instance, fields)
        self._writer.note_change()

    def worker_gone(self, instance: str) -> None:
        self._presence.worker_gone(instance)
        self._writer.note_change()

    async def get(self, request_id: str) -> RequestRecord | None:
        """The newest record of any coordinator's request; None if it is unknown or has expired.

        Raises RedisUnavailable if the request is another coordinator's and Redis does not answer,
        and MalformedMessage if the value in Redis is not a record.
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
        """The newest records of the ``most`` requests received last by all coordinators, the last
        first. A record that cannot be read is left out, counted and logged. Raises
        RedisUnavailable."""
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
        return found  # a request without fields ended long ago, and its record has expired

    def _is_damaged(self, key: str, reply: Any) -> bool:
        """True if the command was refused for the type of ``key``'s value. Raises RedisUnavailable
        if it was refused for another reason."""
        if not isinstance(reply, ResponseError):
            return False
        if not is_wrong_type(reply):
            raise self._reader.refused(reply)
        self._damage.unreadable(key, str(reply))
        return True

    async def close(self, deadline_s: float) -> None:
        """Write the remaining records, remove the keys of this coordinator and its workers, and
        disconnect, within ``deadline_s``. Other coordinators fail the requests still open."""
        await self._writer.close(deadline_s)
        await self._reader.close()
        await self.responses.close()
