"""The timelines of the requests that were received last, read once for all who ask at a time.

200 of them take 50 ms to read and lay out, on the loop that streams: a few at a time, and no more
often than twice a second however many ask.
"""

import asyncio
from collections.abc import Callable

import msgspec

from coordinator.core.contract import History
from coordinator.http.shared_answer import SharedAnswer
from coordinator.record.timeline import timeline

_EVERY_S = 0.5
_LAID_OUT_A_TURN = 20


class LastRequests:
    """Over a History; one for each app. ``now`` gives Unix seconds, as create_app has it."""

    def __init__(self, history: History, now: Callable[[], float]) -> None:
        self._history, self._now = history, now
        self._most = 0  # that anybody waits for
        self._shared = SharedAnswer(self._read, every_s=_EVERY_S)

    async def get(self, most: int) -> list[msgspec.Raw]:
        """The JSON of up to ``most`` RequestTimelines, the last one first; raises what the history
        raises."""
        self._most = max(self._most, most)
        return (await self._shared.get())[:most]

    async def _read(self) -> list[msgspec.Raw]:
        most, self._most = self._most, 0
        records = await self._history.recent(most)
        now = self._now()
        entries: list[msgspec.Raw] = []
        for first in range(0, len(records), _LAID_OUT_A_TURN):
            some = records[first : first + _LAID_OUT_A_TURN]
            entries += [msgspec.Raw(msgspec.json.encode(timeline(r, now))) for r in some]
            await asyncio.sleep(0)
        return entries
