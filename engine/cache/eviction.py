"""Which kept prefix is evicted next. Pure.

A kept prefix is worth ``sqrt(uses) * odds of a use * saved tokens / size / (GAP + age) ** 2``. The
odds are those of places like its own (place_kinds.py). The age begins at the last use:
if half of the uses come within GAP, then ``GAP / (GAP + age) ** 2`` is the density of a use by age
(Lomax, JASA '54, of shape 1). The least is evicted.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from math import floor, log2, sqrt
from typing import Generic, Literal, NamedTuple, TypeVar

Resource = Literal["pages", "state_slots"]

GAP = 2048
"""The age, in uses of all kept prefixes, within which half of the uses of one are taken to come: a
round number near what finds most in the public traces of docs/prefix-cache.md, where half as much
finds nearly the same."""

_SHARED_PAGES = 0.25
"""The size in pages of a kept prefix whose pages all are held by others too: it is evicted late
where pages are short, for no page is free then, but another one may hold some alone."""


class Worth(NamedTuple):
    """``saved_tokens``: from the end of the next shorter kept prefix on its path, or from 0, to its
    own. ``num_pages``: those that nothing else holds. ``odds``: that a prompt goes on from it."""

    saved_tokens: int
    num_pages: int
    odds: float = 0.5

    def per(self, resource: Resource) -> float:
        """Tokens that it is likely to save, for each page that its eviction frees, or for its state
        slot."""
        pages = max(self.num_pages, _SHARED_PAGES)
        return self.odds * max(1, self.saved_tokens) / (pages if resource == "pages" else 1)


K = TypeVar("K", bound=Hashable)


@dataclass
class UseClock:
    """Counts uses of all kept prefixes: one for all memories that a prefix moves between."""

    now: int = 0


class Uses(NamedTuple):
    """How many uses a kept prefix had, and when the last one was."""

    num: int
    last: int


class EvictionOrder(Generic[K]):
    """Kept prefixes in the order of their eviction, one for each resource that may be short.

    ``worth`` is asked when a prefix is used and before it is evicted. Between the two it may rise
    unnoticed; ``changed`` says that it fell, but for odds, which change little by each count. A
    prefix that is not ``evictable`` is passed over.
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
        """It was made, or a prompt begins with it."""
        num_uses = self._uses[kept].num if kept in self._uses else 0
        self._clock.now += 1
        self.adopt(kept, Uses(num_uses + 1, self._clock.now))

    def adopt(self, kept: K, uses: Uses) -> None:
        """It had these uses in another order of the same clock."""
        self._uses[kept] = uses
        self.changed(kept)

    def uses(self, kept: K) -> Uses:
        return self._uses[kept]

    def changed(self, kept: K) -> None:
        """Its worth may have fallen: what it shared is its own now, or a shorter one is kept."""
        worth = self._worth(kept)
        for resource in self._ranks:
            self._rank(kept, resource, worth)

    def remove(self, kept: K) -> None:
        del self._uses[kept]
        for ranks in self._ranks.values():
            ranks.remove(kept)

    def next(self, short: Resource) -> K | None:
        """The one to evict when ``short`` is short, still in the order; None if none can be."""
        while True:
            kept = self._ranks[short].least(self._clock.now)
            if kept is None or not self._rank(kept, short, self._worth(kept)):
                return kept

    def _rank(self, kept: K, resource: Resource, worth: Worth) -> bool:
        num_uses, last = self._uses[kept]
        rank = floor(log2(sqrt(num_uses) * worth.per(resource)))
        return self._ranks[resource].put(kept, rank, last)


_Rank = int
"""The power of two of what a prefix is worth but for its age."""


class _Ranks(Generic[K]):
    """Heaps of kept prefixes of the same worth but for their age, in powers of two.

    In each heap the one that was used least recently is worth least, so that only the first of
    each are compared: some 20 comparisons, however many prefixes are kept.
    """

    def __init__(self, evictable: Callable[[K], bool]) -> None:
        self._evictable = evictable
        self._order = count()
        self._places: dict[K, tuple[_Rank, int]] = {}  # rank and last use; other entries are stale
        self._heaps: dict[_Rank, list[tuple[int, int, K]]] = {}
        self._num_entries = 0

    def put(self, kept: K, rank: _Rank, last: int) -> bool:
        """False if it stays where it is."""
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
        """Of each rank the one that was used least recently, of those that can be evicted."""
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
        """Without stale entries."""
        self._heaps.clear()
        self._num_entries = 0
        for kept in self._places:
            self._push(kept)
