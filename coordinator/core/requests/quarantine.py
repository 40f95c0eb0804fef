"""Quarantine of requests that may crash workers. Pure.

A request that was running on ``num_deaths`` workers when they died, with fewer than ``pass_len``
tokens between, is quarantined: placement/reservations.py places it only at a worker that computes
nothing else and gets nothing else meanwhile. If that worker dies too, the request fails as
``poison_request``. ``pass_len`` tokens after the last death, or its end, release it.

A worker that is heard again had not died: only its connection was lost. So what it was counted for
is taken back.
"""

from coordinator.core.request import Request
from coordinator.core.settings import RetryLimits


class Quarantine:
    """Decides which requests are quarantined, and which lost too many workers."""

    def __init__(self, limits: RetryLimits) -> None:
        self._limits = limits

    def record_death(self, request: Request, instance: str) -> None:
        """Count a worker that died while it ran the request."""
        if request.num_tokens >= request.died_at_len + self._limits.pass_len:
            request.deaths = 0
            request.died_at.clear()
        request.deaths += 1
        request.died_at.add(instance)
        request.died_at_len = request.num_tokens
        request.quarantined = request.deaths >= self._limits.num_deaths

    def take_back(self, request: Request, instance: str) -> bool:
        """Count a worker no longer that was heard again. True if that ends the quarantine."""
        if instance not in request.died_at:
            return False
        request.died_at.discard(instance)
        request.deaths -= 1
        was, request.quarantined = request.quarantined, request.deaths >= self._limits.num_deaths
        return was and not request.quarantined

    def lost_too_many(self, request: Request) -> bool:
        """True if the request lost more workers than any request may."""
        return request.losses > self._limits.max_losses

    def release(self, request: Request) -> bool:
        """Release a quarantined request if it got far enough; True if it did."""
        if request.num_tokens < request.died_at_len + self._limits.pass_len:
            return False
        request.quarantined = False
        return True
