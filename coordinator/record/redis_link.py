"""The connection to Redis: every call has a deadline, no call is retried, all fail in one way.

Values that other programs wrote to Baton's keys are counted, and logged at most once a minute.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoScriptError, RedisError, ResponseError

from coordinator.record import response_scripts, scripts
from coordinator.record.scripts import RUN, Command
from coordinator.record.settings import check_redis_password, check_redis_url, safe_url
from transport.wire.errors import BatonError

log = logging.getLogger(__name__)

_CLOSE_TIMEOUT_S: Final = 0.2
LOG_EVERY_S: Final = 60.0
_SOURCES: Final = (*scripts.SOURCES, *response_scripts.SOURCES)


class RedisUnavailable(BatonError):
    """Redis did not execute a command within the deadline, so the record may lag behind.

    ``final`` if a retry cannot help: Redis answered that it rejects our credentials.
    """

    def __init__(self, url: str, cause: str, *, final: bool = False) -> None:
        super().__init__(f"Redis at {safe_url(url)} {cause}")
        self.final = final


def is_wrong_type(reply: ResponseError) -> bool:
    """True if a command was refused because its key holds a value of another type."""
    return str(reply).startswith("WRONGTYPE")


class Damage:
    """Counts damage to Baton's keys since the start. ``num_replaced`` keys held values of another
    type and were overwritten; ``num_unreadable`` reads of a request's record failed. ``clock``
    gives monotonic seconds. Each kind of damage is logged at most once in ``LOG_EVERY_S``."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.num_replaced = 0
        self.num_unreadable = 0
        self._clock = clock
        self._logged_at: dict[str, float] = {}

    def replaced(self, keys: Sequence[str]) -> None:
        """Count keys that held values of another type. ``keys`` name each with that type."""
        self.num_replaced += len(keys)
        if self._is_due("replaced"):
            log.error(
                "%d keys of Baton in Redis held values of another type since the start and were "
                "replaced, the last one %s; see which other program writes there",
                self.num_replaced,
                keys[-1],
            )

    def unreadable(self, key: str, why: str) -> None:
        """Count a key whose value is not a record."""
        self.num_unreadable += 1
        if self._is_due("unreadable"):
            log.warning("skipped the unreadable record %s: %s", key, why)

    def _is_due(self, kind: str) -> bool:
        now = self._clock()
        due = kind not in self._logged_at or now - self._logged_at[kind] >= LOG_EVERY_S
        if due:
            self._logged_at[kind] = now
        return due


class RedisLink:
    """A pool of connections to ``url``, which connects on first use. ``damage`` counts values of
    other programs that the scripts found in Baton's keys. Raises ValueError for a malformed URL, or
    a URL that holds a password although ``password`` is given too."""

    def __init__(
        self, url: str, *, call_timeout_s: float, damage: Damage, password: str = ""
    ) -> None:
        check_redis_url(url)
        check_redis_password(url, password)
        self._url, self._call_timeout_s, self._damage = url, call_timeout_s, damage
        # RESP2 needs no handshake. NOTE: by default redis-py sends a command again after a
        # timeout, which the server may already have run.
        self._redis: Redis = Redis.from_url(
            url, password=password or None, protocol=2,
            decode_responses=True, encoding_errors="backslashreplace",
            socket_timeout=call_timeout_s, socket_connect_timeout=call_timeout_s,
            retry=Retry(NoBackoff(), 0), health_check_interval=10,
        )  # fmt: skip

    async def run(self, commands: Sequence[Command]) -> list[Any]:
        """Send ``commands`` together and return their replies, a script's without its envelope. The
        reply to a command that the server refused is a ResponseError. Raises RedisUnavailable; then
        any of the commands may have run or not."""
        try:
            async with asyncio.timeout(self._call_timeout_s):
                replies = await self._pipeline(commands)
                missing = [i for i, r in enumerate(replies) if isinstance(r, NoScriptError)]
                if missing:
                    await self._pipeline([("SCRIPT LOAD", source) for source in _SOURCES])
                    again = await self._pipeline([commands[i] for i in missing])
                    for i, reply in zip(missing, again, strict=True):
                        replies[i] = reply
                return list(map(self._opened, commands, replies))
        except TimeoutError:
            raise self.silent(self._call_timeout_s) from None
        except (RedisError, OSError) as error:
            # NOTE: redis-py wraps an AuthenticationError in a plain ConnectionError.
            final = any(isinstance(e, AuthenticationError) for e in (error, error.__context__))
            raise RedisUnavailable(self._url, f"failed: {error}", final=final) from None

    async def ask(self, command: Command) -> Any:
        """Send one command and return its reply. Raises RedisUnavailable, also if it is refused."""
        (reply,) = await self.run([command])
        if isinstance(reply, ResponseError):
            raise self.refused(reply)
        return reply

    def refused(self, reply: ResponseError) -> RedisUnavailable:
        return RedisUnavailable(self._url, f"refused: {reply}")

    def silent(self, after_s: float) -> RedisUnavailable:
        return RedisUnavailable(self._url, f"did not answer within {after_s:.1f} s")

    async def close(self) -> None:
        """Drop every connection; the next call opens a new one. Does not raise."""
        # A stalled server leaves sent data in our buffers: close without waiting for them to empty.
        with suppress(RedisError, OSError):
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self._redis.connection_pool.disconnect()

    def _opened(self, command: Command, reply: Any) -> Any:
        if command[0] != RUN or isinstance(reply, ResponseError):
            return reply
        answer, replaced = reply
        if replaced:
            self._damage.replaced(replaced)
        return answer

    async def _pipeline(self, commands: Sequence[Command]) -> list[Any]:
        async with self._redis.pipeline(transaction=False) as pipeline:
            for command in commands:
                pipeline.execute_command(*command)
            return await pipeline.execute(raise_on_error=False)
