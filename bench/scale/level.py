"""One level: so many requests open at once, each to its end."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bench.client.asking import Ask
from bench.client.client import Client
from bench.client.reading import read
from bench.scale.outcome import Seen, seen


@dataclass
class Crowd:
    """Keeps ``level`` of ``asks`` open until all have ended. The first ``level`` come at
    ``arrivals_per_s``; each end makes room for the next.

    Request i carries the X-Request-Id ``{prefix}{i}``. ``told`` hears of each end.
    """

    client: Client
    level: int
    prefix: str
    output_len: int
    arrivals_per_s: float
    told: Callable[[Seen], None] = lambda _: None
    ends: list[Seen] = field(default_factory=list)
    num_open: int = 0
    most_open: int = 0
    reached_after_s: float | None = None

    async def run(self, asks: Sequence[Ask]) -> list[Seen]:
        waiting = iter(enumerate(asks))
        begin = time.perf_counter()

        async def place(number: int) -> None:
            delay_s = begin + number / self.arrivals_per_s - time.perf_counter()
            if delay_s > 0:
                await asyncio.sleep(delay_s)
            for index, ask in waiting:
                await self._one(index, ask, begin)

        async with asyncio.TaskGroup() as tasks:
            for number in range(min(self.level, len(asks))):
                tasks.create_task(place(number))
        return self.ends

    async def _one(self, index: int, ask: Ask, begin: float) -> None:
        http_id = f"{self.prefix}{index}"
        self.num_open += 1
        if self.num_open > self.most_open:
            self.most_open = self.num_open
            self.reached_after_s = time.perf_counter() - begin
        exchange = await self.client.request(
            "POST", ask.path, ask.content, headers={"X-Request-Id": http_id}, streamed=ask.stream
        )
        self.num_open -= 1
        self.ends.append(seen(http_id, read(exchange), self.output_len))
        self.told(self.ends[-1])
