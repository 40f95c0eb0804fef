"""Ends a run before its time: by Ctrl-C, its time limit, or a server that does not answer.

Everything measured until then is kept, and requests under way become records.
"""

import asyncio
import math
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

from typer import Option

from bench.harness.client.client import Client
from bench.harness.client.exchange import Exchange

INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class Patience:
    """A run ends after ``give_up_after`` failures in a row, or after ``time_limit_s``."""

    give_up_after: Annotated[int, Option(help="Failures in a row that end the run.")] = 16
    time_limit_s: Annotated[float, Option(help="Seconds for the whole run.")] = 14_400.0

    def __post_init__(self) -> None:
        if self.give_up_after < 1:
            raise ValueError(f"give_up_after: {self.give_up_after} is not at least 1")
        if not 0 < self.time_limit_s < math.inf:
            raise ValueError(f"time_limit_s: {self.time_limit_s} is not above 0, or not finite")


class RunControl:
    """Decides whether one run goes on. ``stopped``: why it ended; once set, the client sends no
    more."""

    def __init__(self, client: Client, patience: Patience) -> None:
        self._client = client
        self._patience = patience
        self._in_a_row = 0
        self._over = asyncio.Event()
        self.stopped: str | None = None

    def stop(self, reason: str) -> None:
        """Stop the run; requests under way end as cancelled. Only the first call has an effect."""
        if self.stopped is None:
            self.stopped = reason
            self._over.set()
            self._client.abort()

    async def stopped_within(self, seconds: float) -> bool:
        """Wait ``seconds``, or until the run is stopped; True if it is stopped."""
        if seconds <= 0 or self.stopped is not None:
            return self.stopped is not None
        try:
            async with asyncio.timeout(seconds):
                await self._over.wait()
        except TimeoutError:
            return False
        return True

    def saw(self, exchange: Exchange) -> bool:
        """Note an exchange that ended; True if it failed."""
        failed = exchange.failure is not None or exchange.status != 200
        self._in_a_row = self._in_a_row + 1 if failed else 0
        if self._in_a_row >= self._patience.give_up_after:
            why = exchange.failure or f"HTTP {exchange.status}"
            self.stop(f"given up after {self._in_a_row} failures in a row, the last: {why}")
        return failed

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While entered, SIGINT, SIGTERM and the time limit stop the run."""
        loop = asyncio.get_running_loop()
        limit = self._patience.time_limit_s
        timer = loop.call_later(limit, self.stop, f"time limit of {limit:g} s")
        signals = (signal.SIGINT, signal.SIGTERM)
        for number in signals:
            loop.add_signal_handler(number, self.stop, INTERRUPTED)
        try:
            yield
        finally:
            timer.cancel()
            for number in signals:
                loop.remove_signal_handler(number)
