"""Offers: finished prompts, and sequences that move, which wait to be pulled. Pure.

An offer is readable by one puller at a time. It ends by a release that names its epoch, by the end
of its request, or at its deadline, in case the coordinator forgot it.
"""

from dataclasses import dataclass

from engine.cache.allocator import CacheAllocator
from engine.sequence import Sequence


@dataclass(frozen=True)
class Offered:
    """An offer, which ends at ``expires_at`` if nothing ends it before."""

    sequence: Sequence
    expires_at: float


class Offers:
    """Every offered sequence of this worker, by request."""

    def __init__(self, allocator: CacheAllocator, ttl_s: float) -> None:
        self._allocator = allocator
        self._ttl_s = ttl_s
        self._offered: dict[str, Offered] = {}

    def __len__(self) -> int:
        return len(self._offered)

    def sequences(self) -> list[Sequence]:
        """The offered sequences."""
        return [offered.sequence for offered in self._offered.values()]

    def add(self, sequence: Sequence, now: float) -> None:
        """Offer a sequence's cache; an offer of an older attempt is freed first."""
        self.withdraw(sequence.request_id, sequence.attempt)
        self._offered[sequence.request_id] = Offered(sequence, now + self._ttl_s)

    def release(self, request_id: str, attempt: int, epoch: int) -> bool:
        """Free a transferred offer. Returns False, changing nothing, if attempt or epoch differ."""
        offered = self._offered.get(request_id)
        if offered is None or offered.sequence.attempt != attempt:
            return False
        allocation = offered.sequence.allocation
        if allocation is None or allocation.slot.epoch != epoch:
            return False
        self._free(request_id)
        return True

    def withdraw(self, request_id: str, attempt: int) -> bool:
        """Free the request's offer if it is of ``attempt`` or older; returns True if it was."""
        offered = self._offered.get(request_id)
        if offered is None or offered.sequence.attempt > attempt:
            return False
        self._free(request_id)
        return True

    def expire(self, now: float) -> list[Sequence]:
        """Free every offer past its deadline; returns their sequences."""
        late = [o.sequence for o in self._offered.values() if o.expires_at <= now]
        for sequence in late:
            self._free(sequence.request_id)
        return late

    def take(self, request_id: str, attempt: int) -> Sequence | None:
        """Remove the request's offer and return its sequence with its memory, to go on here; None
        if there is no offer of this attempt."""
        offered = self._offered.get(request_id)
        if offered is None or offered.sequence.attempt != attempt:
            return None
        return self._offered.pop(request_id).sequence

    def withdraw_all(self) -> None:
        for request_id in list(self._offered):
            self._free(request_id)

    def _free(self, request_id: str) -> None:
        sequence = self._offered.pop(request_id).sequence
        assert sequence.allocation is not None, "an offer without pages"
        self._allocator.release(sequence.allocation)
        sequence.allocation = None
