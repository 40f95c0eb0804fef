"""Which pages and state slot a sequence holds: one allocation, from reserve to release.

The states of design and docs map onto it so: *filling*, *receiving* and *live* are an allocation
of a sequence; *offered* is an allocation that the offers keep; *retiring* is an allocation whose
sequence has ended but is still touched by a launched step. A page or slot in no allocation is free.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from engine.cache.pages import PagePool
from engine.cache.slots import SlotPool, StateSlot
from transport.wire.layout import CacheLayout, PoolSize


@dataclass(eq=False)
class CacheAllocation:
    """The pages and the state slot of one sequence; invalid once released."""

    slot: StateSlot
    pages: list[int] = field(default_factory=list)
    released: bool = False


class CacheAllocator:
    """The two pools kept together, so that a sequence has both or neither.

    ``on_reserve`` runs before anything is written for the new owner, ``on_release`` when the last
    owner releases; a worker publishes the slot's epoch there, and tests poison memory.
    """

    def __init__(
        self,
        size: PoolSize,
        *,
        on_reserve: Callable[[CacheAllocation], None] = lambda allocation: None,
        on_release: Callable[[CacheAllocation], None] = lambda allocation: None,
    ) -> None:
        self.size = size
        self._pages = PagePool(size.num_pages)
        self._slots = SlotPool(size.num_state_slots)
        self._on_reserve = on_reserve
        self._on_release = on_release
        self._allocations: set[CacheAllocation] = set()

    @property
    def free_pages(self) -> int:
        return self._pages.num_free

    @property
    def free_state_slots(self) -> int:
        return self._slots.num_free

    def can_reserve(self, num_pages: int) -> bool:
        return self._slots.num_free > 0 and self._pages.num_free >= num_pages

    def reserve(self, num_pages: int) -> CacheAllocation:
        """A state slot and ``num_pages`` pages; raises PoolExhausted, taking neither."""
        pages = self._pages.reserve(num_pages)
        try:
            slot = self._slots.reserve()
        except BaseException:
            self._pages.release(pages)
            raise
        allocation = CacheAllocation(slot, list(pages))
        self._allocations.add(allocation)
        self._on_reserve(allocation)
        return allocation

    def grow(self, allocation: CacheAllocation, num_pages: int) -> None:
        """Extend an allocation to ``num_pages`` pages; raises PoolExhausted, changing nothing."""
        assert not allocation.released, "growing a released allocation"
        missing = num_pages - len(allocation.pages)
        if missing > 0:
            allocation.pages.extend(self._pages.reserve(missing))

    def release(self, allocation: CacheAllocation) -> None:
        """Give everything back; only once no launched step or copy can touch it any more."""
        assert not allocation.released, "released twice"
        allocation.released = True
        self._allocations.remove(allocation)
        self._on_release(allocation)
        self._pages.release(allocation.pages)
        self._slots.release(allocation.slot)

    def check(self) -> str:
        """ "" if every page and state slot is accounted for, else what is wrong."""
        pages = self._pages.num_free + sum(
            len(allocation.pages) for allocation in self._allocations
        )
        slots = self._slots.num_free + len(self._allocations)
        if (pages, slots) == (self.size.num_pages, self.size.num_state_slots):
            return ""
        return (
            f"{pages} of {self.size.num_pages} pages and {slots} of "
            f"{self.size.num_state_slots} state slots accounted for"
        )


def too_long(num_tokens: int, layout: CacheLayout, size: PoolSize) -> str:
    """Why a sequence of so many cached tokens can never fit the cache; "" if it can."""
    if layout.pages_for(num_tokens) <= size.num_pages:
        return ""
    return f"{num_tokens} tokens do not fit into {size.num_pages} pages of {layout.page_size}"
