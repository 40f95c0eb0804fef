"""Finds requests that wait, or make no progress, for too long. Pure."""

import heapq
from collections.abc import Iterator, Mapping
from itertools import count
from math import inf

from coordinator.core.request import Request
from coordinator.core.settings import HubSettings

Failure = tuple[Request, str, str]
_SPARE = 1_024


class Overdue:
    """Checks each open request of ``requests`` when it may be overdue, and not before.

    A request at a worker may be silent for ``silence_timeout_s``: without a token, a handoff or a
    new placement. A request may wait for a worker for ``queue_timeout_s`` at a time: under overload
    that is no error. Neither limits the length of an answer.
    """

    def __init__(self, settings: HubSettings, requests: Mapping[str, Request]) -> None:
        self._silence_s = settings.silence_timeout_s
        self._queue_s = settings.queue_timeout_s
        self._total_s = settings.request_timeout_s or inf
        self._requests = requests
        self._numbers = count()
        self._looks: list[tuple[float, int, str]] = []

    def __len__(self) -> int:
        return len(self._looks)

    def add(self, request: Request, now: float) -> None:
        """Begin to check a request that has been accepted."""
        self._look_at(request, now)
        if len(self._looks) > 2 * len(self._requests) + _SPARE:  # most of these requests have ended
            self._looks = [look for look in self._looks if look[2] in self._requests]
            heapq.heapify(self._looks)

    def due(self, now: float) -> Iterator[Failure]:
        """Yield the overdue requests, each with the code and message of its failure."""
        while self._looks and self._looks[0][0] <= now:
            request = self._requests.get(heapq.heappop(self._looks)[2])
            if request is None:
                continue
            at, code, message = self._deadline(request)
            if at <= now:
                yield request, code, message
            else:
                self._look_at(request, now)

    def _look_at(self, request: Request, now: float) -> None:
        # Whatever happens from now on, the request's deadline is no earlier than this.
        at = min(self._deadline(request)[0], now + min(self._silence_s, self._queue_s))
        heapq.heappush(self._looks, (at, next(self._numbers), request.request_id))

    def _deadline(self, request: Request) -> tuple[float, str, str]:
        if request.waiting:
            at, code = request.progress_at + self._queue_s, "queue_timeout"
            wanted = "worker"
            if request.too_long_for is not None:
                wanted = f"{request.too_long_for} worker that holds {request.needs_len} tokens"
            message = f"waited for a {wanted} for {self._queue_s:g} s"
        else:
            at, code = request.progress_at + self._silence_s, "timeout"
            message = f"no progress for {self._silence_s:g} s"
        ends_at = request.accepted_at + self._total_s
        if ends_at < at:
            return ends_at, "timeout", f"not done after {self._total_s:g} s"
        return at, code, message
