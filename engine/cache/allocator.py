"""The cache allocator: a sequence's pages and state slot as one allocation, reserved and released.

The states in docs/architecture.md: *filling*, *receiving* and *running* are allocations of a
sequence; *offered* is an allocation that the offers keep; *retiring* is an allocation whose
sequence has ended but is still used by a launched step; *cached* are the pages and state slots of
kept prefixes (prefix_memory.py), which are evicted when memory is needed. All others are free.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from engine.cache.kept import KeptPrefix
from engine.cache.pages import PagePool
from engine.cache.prefix_memory import PrefixMemory
from engine.cache.slots import SlotPool, StateSlot
from transport.wire.layout import CacheLayout, PoolSize
from transport.wire.prefix import PrefixKeys


@dataclass(eq=False)
class CacheAllocation:
    """The pages and the state slot of one sequence; invalid once released. The first ``num_shared``
    pages are shared: the sequence only reads them. ``published``: peers see the slot's epoch; until
    then they see it as free."""

    slot: StateSlot
    pages: list[int] = field(default_factory=list)
    num_shared: int = 0
    published: bool = False
    released: bool = False


def _nothing(slot: StateSlot) -> None:
    pass


def _nothing_freed(slot: StateSlot | None, pages: Sequence[int]) -> None:
    pass


class CacheAllocator:
    """The two pools kept together, so that a sequence has both or neither.

    ``on_reserve`` is called with a newly reserved slot, ``on_free`` when a slot (or None) and pages
    have become free: a worker publishes the slot's epoch there, and tests poison memory.
    ``prefixes``: the memory of prefixes that are being made or ``kept``. Without states
    (``has_states``) pages alone are a prefix, whose slot is empty and comes from a pool of its own.
    """

    def __init__(
        self,
        size: PoolSize,
        *,
        page_size: int = 1,
        has_states: bool = True,
        on_reserve: Callable[[StateSlot], None] = _nothing,
        on_free: Callable[[StateSlot | None, Sequence[int]], None] = _nothing_freed,
    ) -> None:
        self.size = size
        self._page_size = page_size
        self._pages = PagePool(size.num_pages)
        self._slots = SlotPool(size.num_state_slots)
        self._has_states = has_states
        slots = self._slots
        if not has_states:
            slots = SlotPool(size.num_pages, first=size.num_state_slots)
        self._num_slots = size.num_state_slots + (0 if has_states else size.num_pages)
        self._prefix_slots = slots
        self.prefixes = PrefixMemory(
            self._pages, slots, page_size, on_reserve, on_free, pages_alone=not has_states
        )
        self.kept = self.prefixes.kept
        self._on_reserve = on_reserve
        self._on_free = on_free
        self._allocations: set[CacheAllocation] = set()

    @property
    def free_pages(self) -> int:
        """Number of pages that no sequence holds; some of them may be cached."""
        return self._pages.num_free + self._pages.num_only_kept

    @property
    def free_state_slots(self) -> int:
        """Number of state slots that no sequence holds; some of them may be cached."""
        num_cached = self.kept.num_evictable if self._has_states else 0
        return self._slots.num_free + num_cached

    @property
    def num_pages_cached(self) -> int:
        """Number of pages that only kept prefixes hold."""
        return self._pages.num_only_kept

    @property
    def num_pages_shared(self) -> int:
        """Number of additional pages that the sequences would hold if they shared none."""
        num_used = self._pages.num_held - self._pages.num_only_kept
        return max(0, sum(len(each.pages) for each in self._allocations) - num_used)

    def num_pages_freed_by(self, holds: Iterable[Sequence[int]]) -> int:
        """Number of additional pages that are free once each of these uses of pages has ended."""
        return self._pages.num_used_only_by(holds)

    def can_reserve(self, num_pages: int) -> bool:
        return self.free_state_slots > 0 and self.free_pages >= num_pages

    def can_share(self, num_pages: int, prefix: KeptPrefix) -> bool:
        """True if ``reserve`` can succeed without evicting ``prefix`` itself."""
        num_new = num_pages - prefix.num_tokens // self._page_size
        num_slots = self.free_state_slots - (self._has_states and not prefix.num_users)
        if num_slots <= 0 or num_new > self.free_pages:
            return False
        return num_new <= self.free_pages - self._pages.count_only_kept(prefix.pages)

    def reserve(self, num_pages: int, prefix: KeptPrefix | None = None) -> CacheAllocation:
        """``reserve_unpublished`` followed by ``publish``."""
        allocation = self.reserve_unpublished(num_pages, prefix)
        self.publish(allocation)
        return allocation

    def publish(self, allocation: CacheAllocation) -> None:
        """Show peers the state slot's epoch; called before a peer gets an offer of it."""
        if not allocation.published:
            self._on_reserve(allocation.slot)
            allocation.published = True

    def reserve_unpublished(
        self, num_pages: int, prefix: KeptPrefix | None = None
    ) -> CacheAllocation:
        """Reserve a state slot and ``num_pages`` pages, which begin with the whole pages of
        ``prefix``. Kept prefixes are evicted as needed. Raises PoolExhausted, reserving nothing.
        Peers see the state slot as free until ``publish``, or until it is kept with a prefix."""
        shared: tuple[int, ...] = ()
        if prefix is not None:
            shared = prefix.pages[: prefix.num_tokens // self._page_size]
            self.prefixes.pin(prefix)
            self._pages.use(shared)
        try:
            self._make_room(num_pages - len(shared), 1)
            pages = self._pages.reserve(num_pages - len(shared))
            try:
                slot = self._slots.reserve()
            except BaseException:
                self._pages.release(pages)
                raise
        except BaseException:
            self._pages.release(shared)
            raise
        finally:
            if prefix is not None:
                self.prefixes.unpin(prefix)
        allocation = CacheAllocation(slot, [*shared, *pages], len(shared))
        self._allocations.add(allocation)
        return allocation

    def grow(self, allocation: CacheAllocation, num_pages: int) -> None:
        """Extend an allocation to ``num_pages`` pages; raises PoolExhausted, changing nothing."""
        assert not allocation.released, "growing a released allocation"
        missing = num_pages - len(allocation.pages)
        if missing > 0:
            self._make_room(missing, 0)
            allocation.pages.extend(self._pages.reserve(missing))

    def release(self, allocation: CacheAllocation) -> None:
        """Free an allocation that no launched step or copy can use any more."""
        self._forget(allocation)
        self._on_free(allocation.slot, self._pages.release(allocation.pages))
        self._slots.release(allocation.slot)

    def turn_into_prefix(
        self, allocation: CacheAllocation, keys: PrefixKeys, num_tokens: int
    ) -> KeptPrefix | None:
        """Release an allocation, but keep its state slot, whose state is behind ``num_tokens``
        tokens, and the pages of these tokens as a prefix. If that prefix is kept already, or no
        slot is left for a prefix without a state, release everything and return None."""
        key = keys.prefix(num_tokens)
        if key in self.kept:
            self.kept.touch(key)
            self.release(allocation)
            return None
        if self._has_states:
            self._forget(allocation)
            self.publish(allocation)
            return self.prefixes.take_over(allocation.pages, keys, num_tokens, allocation.slot)
        making = self.prefixes.begin(allocation.pages, keys, num_tokens, "answer")
        if making is not None:
            self.prefixes.finish(making)
        self.release(allocation)
        return making

    def check(self) -> str:
        """The problem with the allocator's counts; "" if every page and state slot is accounted
        for."""
        num_uses, num_keeps = self.prefixes.references
        references = num_uses + sum(len(a.pages) for a in self._allocations), num_keeps
        slots = self._slots.num_free + len(self._allocations) + self.prefixes.num_slots
        if not self._has_states:
            slots += self._prefix_slots.num_free
        if references == self._pages.references and slots == self._num_slots:
            return ""
        return (
            f"sequences and kept prefixes hold {references} pages, the pool says "
            f"{self._pages.references}; {slots} of {self._num_slots} slots "
            "accounted for"
        )

    def _forget(self, allocation: CacheAllocation) -> None:
        assert not allocation.released, "released twice"
        allocation.released = True
        self._allocations.remove(allocation)

    def _make_room(self, num_pages: int, num_slots: int) -> None:
        """Evict kept prefixes until that much is free; evict none if all of them are not enough."""
        if num_pages <= self.free_pages and num_slots <= self.free_state_slots:
            self.prefixes.make_room(num_pages, num_slots if self._has_states else 0)


def too_long(num_tokens: int, layout: CacheLayout, size: PoolSize) -> str:
    """Why a sequence of ``num_tokens`` cached tokens can never fit in the cache; "" if it can."""
    if layout.pages_for(num_tokens) <= size.num_pages:
        return ""
    return f"{num_tokens} tokens do not fit into {size.num_pages} pages of {layout.page_size}"
