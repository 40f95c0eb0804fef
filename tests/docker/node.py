"""One stack for all tests here, and the account of every request that it was ever sent."""

import asyncio
import re
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.docker.composed import Composed
from tests.docker.load import Load, Try
from tests.e2e.waiting import eventually

_ENDED = re.compile(r'^baton_requests_total\{.*state="(\w+)"\} ([\d.]+)$', re.MULTILINE)


class Node(Composed):
    """``measures`` are told at the end of the run; ``answers`` are the final numbers that the
    questions got when nothing disturbed."""

    def __init__(self) -> None:
        super().__init__()
        self.measures: dict[str, Any] = {}
        self.answers: dict[int, str] = {}
        self.tries: list[Try] = []
        self._counted_before = 0

    @asynccontextmanager
    async def load(self, clients: int = 6) -> AsyncIterator[Load]:
        """Requests all the time inside, some of them just begun when this yields."""
        load = Load(self.url, self.answers, clients)
        try:
            async with load:
                await went_on(load, clients)
                yield load
        except Exception as error:
            error.add_note(f"the newest tries: {Counter(t.outcome for t in load.tries[-50:])}")
            error.add_note(await asyncio.to_thread(self.said))
            raise
        self.tries += load.tries

    async def accounts_agree(self, *, new_coordinator: bool = False) -> None:
        """Every accepted request finished, as its client saw, as Redis has it and as the
        coordinator counted; and what was not accepted is known nowhere. A new coordinator counts
        from its start: what it has counted now is what later counts are compared with."""
        await self.idle()
        seen = {t.http_id: t.outcome for t in self.tries}
        assert set(seen.values()) <= {"finished", "refused", "unanswered"}, seen
        finished = {http_id for http_id, outcome in seen.items() if outcome == "finished"}

        async def check() -> None:
            records = await asyncio.to_thread(self.records)
            assert records == dict.fromkeys(finished, "finished")

        await eventually(check, "Redis knows what the clients know")
        ended: Counter[str] = Counter()
        for state, number in _ENDED.findall(await self.metrics()):
            ended[state] += int(float(number))
        counted = ended.pop("finished", 0)
        assert not ended.total(), ended
        if new_coordinator:
            self._counted_before = len(finished) - counted
        assert counted == len(finished) - self._counted_before >= 0, "the coordinator miscounts"


async def went_on(load: Load, num_requests: int, deadline_s: float = 90.0) -> None:
    """Wait until so many more requests have finished."""
    since = time.monotonic()

    async def check() -> None:
        found = load.finished_since(since)
        assert found >= num_requests, f"{found} of {num_requests} finished"

    await eventually(check, "requests finish", deadline_s)
