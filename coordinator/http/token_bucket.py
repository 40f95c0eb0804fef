"""How much may be used a minute: a token bucket. Pure: the clock is given."""

from collections.abc import Callable
from typing import Protocol

_MINUTE_S = 60.0
_ROUNDING = 1e-9  # who waited as long as told is not refused for the last digit


class Quota(Protocol):
    """What an account may use of something."""

    def wait_s(self) -> float:
        """Seconds until there is at least one; 0 now."""
        ...

    def take(self, amount: int) -> None:
        """Use ``amount``, there or not: what is overdrawn is waited for by those who come next."""
        ...


class TokenBucket:
    """Holds at most what a minute brings, and begins full: after a quiet minute all of it may be
    used at once, and over any span of t minutes at most ``per_minute`` × (1 + t) is used, besides
    what those overdraw that were admitted together while something was left."""

    def __init__(self, per_minute: int, clock: Callable[[], float]) -> None:
        assert per_minute > 0, "whoever reads the settings refuses this"
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

    def _refill(self) -> None:
        now = self._clock()
        self._level = min(self._capacity, self._level + (now - self._at) * self._per_s)
        self._at = now


class Unlimited:
    """The quota of who has none."""

    def wait_s(self) -> float:
        return 0.0

    def take(self, amount: int) -> None:
        pass
