"""What Redis says became of requests."""

from typing import Protocol

import redis

from bench.cannot_measure import CannotMeasure
from coordinator.record import keys
from coordinator.record.redis_url import safe_url

_TIMEOUT_S = 10.0
_BATCH = 1_000


class Ledger(Protocol):
    """The record of requests, or the lack of one. Calls block."""

    def states(self, prefix: str) -> dict[str, str]:
        """State by X-Request-Id of the requests whose id begins with ``prefix``."""
        ...

    @property
    def offered(self) -> bool: ...


class NoLedger:
    """A server whose Redis is not at hand, or that has none."""

    offered = False

    def states(self, prefix: str) -> dict[str, str]:
        return {}


class RedisLedger:
    """Reads the records that coordinators write (coordinator/record/keys.py). Raises
    CannotMeasure when Redis does not answer, and two requests of one id."""

    offered = True

    def __init__(self, url: str, password: str = "") -> None:
        self._url = url
        try:
            self._redis = redis.Redis.from_url(
                url, password=password or None, decode_responses=True, socket_timeout=_TIMEOUT_S
            )
            self._redis.ping()
        except (redis.RedisError, ValueError, OSError) as error:
            raise self._unusable(error) from None

    def states(self, prefix: str) -> dict[str, str]:
        found: dict[str, str] = {}
        try:
            batch: list[str] = []
            for key in self._redis.scan_iter(keys.REQUEST_PREFIX + "*", count=_BATCH):
                batch.append(key)
                if len(batch) == _BATCH:
                    self._read(batch, prefix, found)
                    batch = []
            self._read(batch, prefix, found)
        except redis.RedisError as error:
            raise self._unusable(error) from None
        return found

    def _read(self, batch: list[str], prefix: str, found: dict[str, str]) -> None:
        with self._redis.pipeline(transaction=False) as pipeline:
            for key in dict.fromkeys(batch):
                pipeline.hmget(key, "http_id", "state")
            for http_id, state in pipeline.execute():
                if http_id and http_id.startswith(prefix):
                    if http_id in found and found[http_id] != state:
                        state = f"twice: {found[http_id]} and {state}"
                    found[http_id] = state or "none"

    def _unusable(self, error: Exception) -> CannotMeasure:
        return CannotMeasure(f"redis_url: {safe_url(self._url)}: {error}")
