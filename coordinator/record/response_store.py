"""Stores responses for clients in Redis."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from redis.exceptions import ResponseError

from coordinator.record import keys, response_scripts
from coordinator.record.redis_link import RedisLink, RedisUnavailable, is_wrong_type
from coordinator.record.settings import ResponseLimits
from coordinator.record.stored_response import ConversationUnavailable, StoredResponse

log = logging.getLogger(__name__)


class ResponseStore:
    """Implements ``StoredResponses`` of the core's contract over ``link``. ``connected``: True if
    Redis answered the last time that the coordinator asked it."""

    def __init__(
        self, link: RedisLink, connected: Callable[[], bool], limits: ResponseLimits
    ) -> None:
        self._link = link
        self._connected = connected
        self._limits = limits

    async def keep(self, owner: str, response: StoredResponse) -> bool:
        """Store a response. Returns False at once while Redis is known to be away, and False after
        ``keep_wait_s`` if Redis is late."""
        limits = self._limits
        size = len(response.items) + len(response.body)
        if size > limits.max_response_bytes or not limits.response_ttl_s or not self._connected():
            return False
        command = response_scripts.keep(owner, response, limits)
        try:
            async with asyncio.timeout(limits.keep_wait_s):
                return bool(await self._link.ask(command))
        except (TimeoutError, RedisUnavailable) as error:
            log.debug("response %s was not stored: %s", response.response_id, error)
            return False

    async def conversation(self, owner: str, response_id: str) -> list[bytes]:
        """The items of each response of a conversation. Raises ConversationUnavailable and
        RedisUnavailable."""
        command = response_scripts.conversation(owner, response_id, self._limits)
        first, *others = await self._link.ask(command)
        if first in (response_scripts.MISSING, response_scripts.TOO_LONG):
            raise ConversationUnavailable(others[0], too_long=first == response_scripts.TOO_LONG)
        return [items.encode() for items in reversed(others)]

    async def bodies(self, owner: str, response_ids: Sequence[str]) -> list[bytes | None]:
        """The bodies of responses; None for a response that is not stored. Raises
        RedisUnavailable."""
        read = [("HGET", keys.response(owner, each), "body") for each in response_ids]
        return list(map(self._body, await self._link.run(read)))

    async def delete(self, owner: str, response_id: str) -> bool:
        """Delete a response; returns True if it was stored. Raises RedisUnavailable."""
        return bool(await self._link.ask(response_scripts.delete(owner, response_id)))

    async def close(self) -> None:
        await self._link.close()

    def _body(self, reply: Any) -> bytes | None:
        if isinstance(reply, ResponseError) and not is_wrong_type(reply):
            raise self._link.refused(reply)
        return reply.encode() if isinstance(reply, str) else None
