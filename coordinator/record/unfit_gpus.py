"""GPUs that nobody may claim for a while, as Redis is told of them, and as people are."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from coordinator.record import keys, lease_scripts
from coordinator.record.redis_link import RedisLink

FOR_EVER_MS = -1


@dataclass(frozen=True)
class _Mark:
    number: int
    why: str
    until: float


class UnfitGpus:
    """The marks that this coordinator has made; each lasts ``for_s``, or until somebody clears it.

    ``clock`` gives monotonic seconds.
    """

    def __init__(
        self,
        link: RedisLink,
        instance: str,
        *,
        for_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._link = link
        self._instance = instance
        self._for_s = for_s
        self._clock = clock
        self._num_made = 0
        self._marks: dict[str, _Mark] = {}
        self._unwritten: dict[str, _Mark] = {}

    @property
    def dirty(self) -> bool:
        return bool(self._unwritten)

    def mark(self, gpu: str, why: str) -> None:
        """From now on, anew if it was before."""
        self._num_made += 1
        until = self._clock() + self._for_s
        self._marks[gpu] = self._unwritten[gpu] = _Mark(self._num_made, why, until)

    def rewrite_all(self) -> None:
        """The server may have lost them. Those that it has not lost are not made again, since
        they may have been cleared."""
        now = self._clock()
        self._marks = {gpu: mark for gpu, mark in self._marks.items() if mark.until > now}
        self._unwritten = dict(self._marks)

    async def write(self) -> None:
        """Raises RedisUnavailable; what is not written by then stays to be."""
        for gpu, mark in list(self._unwritten.items()):
            left_ms = int((mark.until - self._clock()) * 1000)
            if left_ms > 0:
                make = lease_scripts.mark(self._instance, gpu, mark.why, mark.number, left_ms)
                await self._link.ask(make)
            if self._unwritten.get(gpu) is mark:  # none newer came while it was written
                del self._unwritten[gpu]


def said(gpu: str, why: str, left_ms: int) -> str:
    """
    >>> said("GPU-a", "Xid 48: an uncorrected memory error", 3_541_000)
    'GPU-a is unfit for another 60 min (Xid 48: an uncorrected memory error)'
    """
    left = "for ever" if left_ms == FOR_EVER_MS else f"for another {math.ceil(left_ms / 6e4)} min"
    return f"{gpu} is unfit {left} ({why})"


def how_to_clear(gpus: Sequence[str], redis_cli: str = "redis-cli") -> str:
    """What to do about those, once they have been looked at."""
    names = ",".join(gpus)
    marks = " ".join(map(keys.unfit, gpus))
    return f"reset with nvidia-smi -r -i {names}, then clear with {redis_cli} del {marks}"
