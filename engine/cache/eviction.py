"""The eviction policy of kept prefixes: the prefix with the least worth is evicted next. Pure.

A kept prefix is worth ``sqrt(uses) * odds of a use * saved tokens / size / (GAP + age) ** 2``. The
odds are those of similar places (place_kinds.py). The age is counted from the last use: if half of
the uses come within GAP, then ``GAP / (GAP + age) ** 2`` is the density of a use by age (Lomax,
JASA '54, of shape 1).
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from math import floor, log2, sqrt
from typing import Generic, Literal, NamedTuple, TypeVar

Resource = Literal["pages", "state_slots"]

GAP = 2048
"""The age, in uses of all kept prefixes, within which half of a prefix's uses are assumed to come:
a round number near the best value for the public traces of docs/prefix-cache.md. Half of it gives
nearly the same hits."""

_SHARED_PAGES = 0.25
"""The assumed size, in pages, of a kept prefix that shares all its pages. It is evicted late when
pages are short, since that frees no page at once; then another prefix may be their only holder."""


class Worth(NamedTuple):
    """The worth of a prefix. ``saved_tokens``: tokens from the end of the next shorter kept prefix
    (or from 0) to its own end. ``num_pages``: pages that nothing else holds. ``odds``: how likely a
    prompt continues from it."""

    saved_tokens: int
    num_pages: int
    odds: float = 0.5

    def per(self, resource: Resource) -> float:
        """Expected saved tokens per page that the eviction frees, or per state slot."""
        pages = max(self.num_pages, _SHARED_PAGES)
        return self.odds * max(1, self.saved_tokens) / (pages if resource == "pages" else 1)


K = TypeVar("K", bound=Hashable)


@dataclass
class UseClock:
    """Counts uses of all kept prefixes; shared by the memory tiers that a prefix moves between."""

    now: int = 0


class Uses(NamedTuple):
    """Number of uses of a kept prefix, and the time of the last one."""

    num: int
    last: int


class EvictionOrder(Generic[K]):
    """Kept prefixes in the order of their eviction, one for each resource that may be short.

    ``worth`` is called when a prefix is used and before it is evicted. In between the worth may
    rise unnoticed; a caller reports by ``changed`` that it fell, except for the odds, which each
    count changes only a little. A prefix that is not ``evictable`` is skipped.
    """

    def __init__(
        self,
        worth: Callable[[K], Worth],
        evictable: Callable[[K], bool],
        clock: UseClock | None = None,
    ) -> None:
        self._worth = worth
        self._clock = clock or UseClock()
        self._uses: dict[K, Uses] = {}
        self._ranks: dict[Resource, _Ranks[K]] = {
            "pages": _Ranks(evictable),
            "state_slots": _Ranks(evictable),
        }

    def __len__(self) -> int:
        return len(self._uses)

    def use(self, kept: K) -> None:
        """Count a use: the prefix was made, or a prompt begins with it."""
        num_uses = self._uses[kept].num if kept in self._uses else 0
        self._clock.now += 1
        self.adopt(kept, Uses(num_uses + 1, self._clock.now))

    def adopt(self, kept: K, uses: Uses) -> None:
        """Add a prefix that moved here from another memory tier, with its use history."""
        self._uses[kept] = uses
        self.changed(kept)

    def uses(self, kept: K) -> Uses:
        return self._uses[kept]

    def changed(self, kept: K) -> None:
        """Re-rank a prefix whose worth may have fallen, because its pages are no longer shared or a
        shorter prefix was kept."""
        worth = self._worth(kept)
        for resource in self._ranks:
            self._rank(kept, resource, worth)

    def remove(self, kept: K) -> None:
        del self._uses[kept]
        for ranks in self._ranks.values():
            ranks.remove(kept)

    def next(self, short: Resource) -> K | None:
        """The prefix to evict when ``short`` is missing; it stays in the order. None if no prefix
        can be evicted."""
        while True:
            kept = self._ranks[short].least(self._clock.now)
            if kept is None or not self._rank(kept, short, self._worth(kept)):
                return kept

    def _rank(self, kept: K, resource: Resource, worth: Worth) -> bool:
        num_uses, last = self._uses[kept]
        rank = floor(log2(sqrt(num_uses) * worth.per(resource)))
        return self._ranks[resource].put(kept, rank, last)


_Rank = int
"""The power of two of a prefix's worth without its age."""


class _Ranks(Generic[K]):
    """Heaps of kept prefixes, one for each power of two of their worth without their age.

    In each heap the least recently used prefix is worth least, so only the heaps' first prefixes
    are compared: some 20 comparisons, however many prefixes are kept.
    """

    def __init__(self, evictable: Callable[[K], bool]) -> None:
        self._evictable = evictable
        self._order = count()
        self._places: dict[K, tuple[_Rank, int]] = {}  # rank and last use; other entries are stale
        self._heaps: dict[_Rank, list[tuple[int, int, K]]] = {}
        self._num_entries = 0

    def put(self, kept: K, rank: _Rank, last: int) -> bool:
        """Move a prefix to its rank and last use; returns False if it is there already."""
        place = rank, last
        if self._places.get(kept) == place:
            return False
        self._places[kept] = place
        self._push(kept)
        if self._num_entries > 4 * len(self._places) + 64:
            self._rebuild()
        return True

    def remove(self, kept: K) -> None:
        del self._places[kept]

    def least(self, now: int) -> K | None:
        found = [(2 * log2(GAP + now - first[0]) - power, first) for power, first in self._firsts()]
        return max(found)[1][2] if found else None

    def _firsts(self) -> list[tuple[_Rank, tuple[int, int, K]]]:
        """The least recently used evictable prefix of each rank."""
        found = []
        held = []
        for rank, heap in self._heaps.items():
            while heap:
                last, _, kept = heap[0]
                if self._places.get(kept) != (rank, last):
                    heappop(heap)
                    self._num_entries -= 1
                elif not self._evictable(kept):
                    held.append((rank, heappop(heap)))
                else:
                    found.append((rank, heap[0]))
                    break
        for rank, entry in held:
            heappush(self._heaps[rank], entry)
        return found

    def _push(self, kept: K) -> None:
        rank, last = self._places[kept]
        heappush(self._heaps.setdefault(rank, []), (last, next(self._order), kept))
        self._num_entries += 1

    def _rebuild(self) -> None:
        """Rebuild the heaps without stale entries."""
        self._heaps.clear()
        self._num_entries = 0
        for kept in self._places:
            self._push(kept)
