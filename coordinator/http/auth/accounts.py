"""Quotas of the API keys: what each key has used, and whether it may go on.

GET costs nothing. Any other request is admitted while its key has at least one request and one
token left, and submitted while it still has a token left. Then

- it counts as one request at once, whatever its outcome;
- the tokens of its prompts are charged when the core has accepted it (each prompt once, also for n
  > 1);
- its output is charged token by token as it leaves the core, streamed or not. A client that
  disconnects pays for what was generated until then, and a stream is never cut off for a quota.

So an admitted request may overdraw the tokens of its key; the next requests of the key wait until
that is made up for. The charge is what ``usage`` reports: prompt_tokens + completion_tokens.
"""

import math
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from starlette.types import Scope

from coordinator.core.contract import Token, TokenStream
from coordinator.http.auth.api_keys import ApiKey, owner
from coordinator.http.auth.rate_limit_headers import QuotaLevel, rate_limit_headers
from coordinator.http.errors import ApiError
from telemetry.metrics import Metrics

_MINUTE_S = 60.0
_ROUNDING = 1e-9  # a client that waited for Retry-After is not refused for the last digit


class Quota(Protocol):
    """A limit of requests or tokens."""

    def wait_s(self) -> float:
        """Seconds until at least one is left; 0 if there is one now."""
        ...

    def take(self, amount: int) -> None:
        """Use ``amount``, even if less is left: the next requests wait for what is overdrawn."""
        ...

    def level(self) -> QuotaLevel | None:
        """What is left now; None without a limit."""
        ...


class TokenBucket:
    """Holds at most one minute's worth, and starts full. After a quiet minute all of it may be used
    at once. Over t minutes at most ``per_minute`` × (1 + t) is used, besides what requests overdraw
    that were admitted together while something was left."""

    def __init__(self, per_minute: int, clock: Callable[[], float]) -> None:
        assert per_minute > 0, "the parser of the settings refuses this"
        self._capacity = float(per_minute)
        self._per_s = per_minute / _MINUTE_S
        self._clock = clock
        self._level = self._capacity
        self._at = clock()

    def wait_s(self) -> float:
        self._refill()
        short = 1.0 - self._level
        return short / self._per_s if short > _ROUNDING else 0.0

    def take(self, amount: int) -> None:
        self._refill()
        self._level -= amount

    def level(self) -> QuotaLevel:
        self._refill()
        left = max(0, int(self._level + _ROUNDING))
        return QuotaLevel(
            int(self._capacity), left, reset_s=(self._capacity - self._level) / self._per_s
        )

    def _refill(self) -> None:
        now = self._clock()
        self._level = min(self._capacity, self._level + (now - self._at) * self._per_s)
        self._at = now


class Unlimited:
    """The quota of a key without a limit."""

    def wait_s(self) -> float:
        return 0.0

    def take(self, amount: int) -> None:
        pass

    def level(self) -> None:
        return None


_IN_SCOPE = "baton.account"
QUOTA_USED_UP = 429


class Account(Protocol):
    """The account that a request is charged to. ``weight`` and ``priority``: those of its key."""

    name: str
    weight: int
    priority: int

    def check_tokens(self) -> None:
        """Raises ApiError (429) if other requests have used up the tokens since ``admit``."""
        ...

    def charge(self, num_tokens: int) -> None: ...

    def metered(self, stream: TokenStream) -> TokenStream:
        """``stream``, charging the account for each token."""
        ...


class KeyAccount:
    """The account of one API key."""

    def __init__(self, key: ApiKey, metrics: Metrics, clock: Callable[[], float]) -> None:
        self.name, self.weight, self.priority = key.name, key.weight, key.priority
        self._key = key
        self._requests = _quota(key.requests_per_minute, clock)
        self._tokens = _quota(key.tokens_per_minute, clock)
        self._admitted = metrics.http.key_requests.labels(key.name, "admitted")
        self._refused = metrics.http.key_requests.labels(key.name, "refused")
        self._num_tokens = metrics.http.key_tokens.labels(key.name)

    def admit(self) -> None:
        """Count a request; raises ApiError (429) if the quota is used up."""
        self._check(self._requests, f"{self._key.requests_per_minute} requests")
        self.check_tokens()
        self._requests.take(1)

    def count(self, *, refused: bool) -> None:
        """Count the outcome of a request in the metrics: refused for a quota, or not."""
        (self._refused if refused else self._admitted).inc()

    def headers(self) -> list[tuple[bytes, bytes]]:
        """The rate limit headers of the key's next answer."""
        levels = {"requests": self._requests.level(), "tokens": self._tokens.level()}
        return list(rate_limit_headers(levels))

    def check_tokens(self) -> None:
        self._check(self._tokens, f"{self._key.tokens_per_minute} tokens")

    def charge(self, num_tokens: int) -> None:
        self._tokens.take(num_tokens)
        self._num_tokens.inc(num_tokens)

    def metered(self, stream: TokenStream) -> TokenStream:
        return _Metered(stream, self)

    def _check(self, quota: Quota, limit: str) -> None:
        wait_s = quota.wait_s()
        if wait_s > 0:
            raise ApiError(
                QUOTA_USED_UP,
                f"the key {self.name!r} has used up its {limit} a minute; "
                f"try again in {math.ceil(wait_s)} s",
                code="rate_limit_exceeded",
                retry_after_s=wait_s,
            )


class NoAccount:
    """The account of all requests if no keys are set: nothing is refused or counted."""

    name = ""
    weight = 1
    priority = 0

    def check_tokens(self) -> None:
        pass

    def charge(self, num_tokens: int) -> None:
        pass

    def metered(self, stream: TokenStream) -> TokenStream:
        return stream


class Accounts:
    """One account per key, for the life of the process."""

    def __init__(
        self,
        keys: Sequence[ApiKey],
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._keys = keys
        self._accounts = {key.name: KeyAccount(key, metrics, clock) for key in keys}

    def of(self, presented: bytes) -> KeyAccount | None:
        """The account of the key that a client presents; None for an unknown key."""
        key = owner(presented, self._keys)
        return None if key is None else self._accounts[key.name]


def open_account(scope: Scope, account: Account) -> None:
    """Charge the HTTP request of this ASGI scope to ``account``."""
    scope[_IN_SCOPE] = account


def account_of(scope: Scope) -> Account:
    """The account that the HTTP request of this ASGI scope is charged to."""
    account: Account = scope.get(_IN_SCOPE, _NO_ACCOUNT)
    return account


class _Metered:
    def __init__(self, stream: TokenStream, account: KeyAccount) -> None:
        self._stream = stream
        self._account = account
        self.stop_early = stream.stop_early
        self.cancel = stream.cancel

    def __aiter__(self) -> TokenStream:
        return self

    async def __anext__(self) -> Token:
        token = await anext(self._stream)
        self._account.charge(1)
        return token


def _quota(per_minute: int | None, clock: Callable[[], float]) -> Quota:
    return Unlimited() if per_minute is None else TokenBucket(per_minute, clock)


_NO_ACCOUNT = NoAccount()
