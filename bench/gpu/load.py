"""A closed loop of requests whose number can be changed while it runs."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from bench.cannot_measure import CannotMeasure


@dataclass(frozen=True)
class Answer:
    """What one request gave, as the server counts it."""

    num_prompt: int
    num_output: int


@dataclass(frozen=True)
class Span:
    """One answered request; ``perf_counter`` seconds."""

    begin_s: float
    end_s: float
    answer: Answer


Generate = Callable[[], Awaitable[Answer]]
"""One request, to its end. Raises RequestFailed; must have a deadline of its own."""


StoppedWithin = Callable[[float], Awaitable[bool]]
"""Waits so many seconds, less if the run is stopped; whether it is."""

_CHECK_S = 1.0


class RequestFailed(Exception):
    """A request that was not answered as asked; the message says what came."""


class Load:
    """Keeps ``concurrency`` requests open. Raises CannotMeasure out of ``until_answered`` and
    ``hold`` when ``give_up_after`` requests in a row have failed, or a deadline has passed."""

    def __init__(self, generate: Generate, *, give_up_after: int = 20) -> None:
        self._generate = generate
        self._give_up_after = give_up_after
        self._target = 0
        self._workers: dict[int, asyncio.Task[None]] = {}
        self._failed_in_a_row = 0
        self._progress = asyncio.Event()
        self.spans: list[Span] = []
        self.failures: list[str] = []

    def set_concurrency(self, concurrency: int) -> None:
        """More start at once; fewer as theirs are answered."""
        self._target = concurrency
        for index in range(concurrency):
            worker = self._workers.get(index)
            if worker is None or worker.done():
                self._workers[index] = asyncio.create_task(self._work(index))

    async def until_answered(self, num_spans: int, *, limit_s: float) -> None:
        """Wait until ``spans`` has so many entries."""
        try:
            async with asyncio.timeout(limit_s):
                while len(self.spans) < num_spans:
                    self._progress.clear()
                    await self._progress.wait()
                    self._check()
        except TimeoutError:
            got = len(self.spans)
            last = f"; the last failure: {self.failures[-1]}" if self.failures else ""
            raise CannotMeasure(
                f"{got} of {num_spans} requests were answered within {limit_s:.0f} s{last}"
            ) from None

    async def hold(self, seconds: float, stopped_within: StoppedWithin) -> None:
        """Go on for so long, or until ``stopped_within`` says that the run is stopped."""
        ends_at = time.perf_counter() + seconds
        while (left_s := ends_at - time.perf_counter()) > 0:
            if await stopped_within(min(left_s, _CHECK_S)):
                return
            self._check()

    async def stop(self, grace_s: float) -> None:
        """Let what is open be answered for ``grace_s``, then drop it."""
        self._target = 0
        workers = list(self._workers.values())
        if workers:
            _, late = await asyncio.wait(workers, timeout=grace_s)
            for worker in late:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    async def _work(self, index: int) -> None:
        while index < self._target and self._failed_in_a_row < self._give_up_after:
            begin_s = time.perf_counter()
            try:
                answer = await self._generate()
            except RequestFailed as error:
                self.failures.append(str(error))
                self._failed_in_a_row += 1
            else:
                self._failed_in_a_row = 0
                self.spans.append(Span(begin_s, time.perf_counter(), answer))
            self._progress.set()

    def _check(self) -> None:
        for worker in self._workers.values():
            if worker.done() and not worker.cancelled():
                worker.result()  # a bug of ours shows here
        if self._failed_in_a_row >= self._give_up_after:
            count, last = self._failed_in_a_row, self.failures[-1]
            raise CannotMeasure(f"{count} requests in a row failed; the last: {last}")
