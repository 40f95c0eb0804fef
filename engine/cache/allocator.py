"""Which pages and state slot a sequence holds: one allocation, from reserve to release.

The states of design and docs map onto it so: *filling*, *receiving* and *live* are an allocation
of a sequence; *offered* is an allocation that the offers keep; *retiring* is an allocation whose
sequence has ended but is still touched by a launched step; *cached* are the pages and state slots
of kept prefixes (kept.py), which go when their memory is wanted. All others are free.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from engine.cache.kept import KeptPrefix, KeptPrefixes
from engine.cache.pages import PagePool
from engine.cache.place_kinds import Kind
from engine.cache.slots import SlotPool, StateSlot
from transport.wire.layout import CacheLayout, PoolSize
from transport.wire.offers import PrefixName
from transport.wire.prefix import PrefixKeys


@dataclass(eq=False)
class CacheAllocation:
    """The pages and the state slot of one sequence; invalid once released. The first ``num_shared``
    pages are others' too: the sequence only reads them. ``published``: peers see who has the slot;
    until then they see that it is free."""

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

    ``on_reserve`` is called with a slot's new owner, ``on_free`` when the last owner of a slot (or
    None) and of pages has gone: a worker publishes the slot's epoch there, and tests poison memory.
    ``on_keep`` is called with each prefix that is kept from now on,
    ``on_evict`` with each that is found no more.
    """

    def __init__(
        self,
        size: PoolSize,
        *,
        page_size: int = 1,
        on_reserve: Callable[[StateSlot], None] = _nothing,
        on_free: Callable[[StateSlot | None, Sequence[int]], None] = _nothing_freed,
    ) -> None:
        self.size = size
        self.on_keep: Callable[[KeptPrefix], None] = lambda kept: None
        self.on_evict: Callable[[KeptPrefix], None] = lambda kept: None
        self._page_size = page_size
        self._pages = PagePool(size.num_pages)
        self.kept = KeptPrefixes(page_size, self._pages.num_kept_once)
        self._slots = SlotPool(size.num_state_slots)
        self._on_reserve = on_reserve
        self._on_free = on_free
        self._allocations: set[CacheAllocation] = set()
        self._making: set[KeptPrefix] = set()

    @property
    def free_pages(self) -> int:
        """Pages that no sequence has; some of them may be cached."""
        return self._pages.num_free + self._pages.num_only_kept

    @property
    def free_state_slots(self) -> int:
        """State slots that no sequence has; some of them may be cached."""
        return self._slots.num_free + self.kept.num_evictable

    @property
    def num_pages_cached(self) -> int:
        """Pages that only kept prefixes hold."""
        return self._pages.num_only_kept

    @property
    def num_pages_shared(self) -> int:
        """How many more pages the sequences would hold if they shared none."""
        num_used = self._pages.num_held - self._pages.num_only_kept
        return max(0, sum(len(each.pages) for each in self._allocations) - num_used)

    def num_pages_freed_by(self, holds: Iterable[Sequence[int]]) -> int:
        """How many more pages count as free once each of these uses of pages has ended."""
        return self._pages.num_used_only_by(holds)

    def can_reserve(self, num_pages: int) -> bool:
        return self.free_state_slots > 0 and self.free_pages >= num_pages

    def can_share(self, num_pages: int, prefix: KeptPrefix) -> bool:
        """Whether ``reserve`` can do without what ``prefix`` itself holds."""
        num_new = num_pages - prefix.num_tokens // self._page_size
        num_slots = self.free_state_slots - (not prefix.num_users)
        if num_slots <= 0 or num_new > self.free_pages:
            return False
        return num_new <= self.free_pages - self._pages.count_only_kept(prefix.pages)

    def reserve(self, num_pages: int, prefix: KeptPrefix | None = None) -> CacheAllocation:
        """``reserve_unpublished``, and published."""
        allocation = self.reserve_unpublished(num_pages, prefix)
        self.publish(allocation)
        return allocation

    def publish(self, allocation: CacheAllocation) -> None:
        """Let peers see who has the state slot, before one is told of it."""
        if not allocation.published:
            self._on_reserve(allocation.slot)
            allocation.published = True

    def reserve_unpublished(
        self, num_pages: int, prefix: KeptPrefix | None = None
    ) -> CacheAllocation:
        """A state slot and ``num_pages`` pages, the first of them the whole pages of ``prefix``;
        raises PoolExhausted, taking neither. Kept prefixes are evicted as needed. Peers see the
        state slot as free until ``publish``, or until it is kept with a prefix."""
        shared: tuple[int, ...] = ()
        if prefix is not None:
            shared = prefix.pages[: prefix.num_tokens // self._page_size]
            self.pin(prefix)
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
                self.unpin(prefix)
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
        """Give everything back; only once no launched step or copy can touch it any more."""
        self._forget(allocation)
        self._on_free(allocation.slot, self._pages.release(allocation.pages))
        self._slots.release(allocation.slot)

    # ---- prefixes that are kept

    def begin_prefix(
        self, allocation: CacheAllocation, keys: PrefixKeys, num_tokens: int, kind: Kind
    ) -> KeptPrefix | None:
        """A state slot for the state behind ``num_tokens`` tokens of a sequence, which a batch is
        about to write; None if that prefix is kept already, or no slot is to be had. It is not to
        be used before ``finish_prefix``."""
        key = keys.prefix(num_tokens)
        if key in self.kept:
            self.kept.touch(key)
            return None
        if not self.free_state_slots:
            return None
        self._make_room(0, 1)
        slot = self._slots.reserve()
        self._on_reserve(slot)
        kept = self._prefix_of(allocation, keys, num_tokens, slot, kind)
        self._pages.use(kept.pages)
        self._making.add(kept)
        return kept

    def finish_prefix(self, kept: KeptPrefix, *, sound: bool = True) -> bool:
        """Its state is written: keep it from here on. False, freeing it, if it is not ``sound``, is
        doubted, or another one was kept meanwhile."""
        self._making.remove(kept)
        if sound and not kept.doubted and kept.key not in self.kept:
            self._pages.keep(kept.pages)
            self._pages.release(kept.pages)
            self.kept.add(kept)
            self.on_keep(kept)
            return True
        kept.valid = False
        self._on_free(kept.slot, self._pages.release(kept.pages))
        self._slots.release(kept.slot)
        return False

    def turn_into_prefix(
        self, allocation: CacheAllocation, keys: PrefixKeys, num_tokens: int
    ) -> KeptPrefix | None:
        """Release an allocation, and keep its state slot, whose state is behind ``num_tokens``
        tokens, with their pages. None, releasing all, if that prefix is kept already."""
        key = keys.prefix(num_tokens)
        if key in self.kept:
            self.kept.touch(key)
            self.release(allocation)
            return None
        self._forget(allocation)
        self.publish(allocation)
        kept = self._prefix_of(allocation, keys, num_tokens, allocation.slot, "answer")
        self._pages.keep(kept.pages)
        self._on_free(None, self._pages.release(allocation.pages))
        self.kept.add(kept)
        self.on_keep(kept)
        return kept

    def pin(self, kept: KeptPrefix) -> None:
        """Something that is about to be launched reads it: it is not evicted until ``unpin``."""
        self._pages.use(kept.pages)
        self.kept.note_pinned(kept)

    def unpin(self, kept: KeptPrefix) -> None:
        self.kept.note_unpinned(kept)
        self._pages.release(kept.pages)
        if kept.doubted and not kept.num_users:
            self.evict(kept)

    def from_on(self, name: PrefixName) -> list[KeptPrefix]:
        """This prefix, and the longer ones that have its whole pages, kept or about to be."""
        making = (kept for kept in self._making if kept.goes_on_from(name))
        return [*self.kept.from_on(name), *making]

    def being_made(self, key: bytes) -> list[KeptPrefix]:
        """Those of this key that launched batches and copies are writing."""
        return [kept for kept in self._making if kept.key == key]

    def doubt(self, kept: KeptPrefix) -> None:
        """Its state may be wrong: it is not found any more, and freed with its last user. One that
        is being made is not kept."""
        if kept in self._making:
            kept.doubted = True
        elif kept.valid:
            if not kept.doubted:
                self.kept.doubt(kept)
                self.on_evict(kept)
            if not kept.num_users:
                self.evict(kept)

    def evict(self, kept: KeptPrefix) -> None:
        """Free a kept prefix that nothing under way reads."""
        self.kept.remove(kept)
        if not kept.doubted:
            self.on_evict(kept)
        self._on_free(kept.slot, self._pages.drop(kept.pages))
        self._slots.release(kept.slot)
        self.kept.note_evicted(kept)

    def next_to_leave(self, num_pages: int, num_state_slots: int) -> KeptPrefix | None:
        """The kept prefix to evict while fewer pages or state slots than these are free and hold
        nothing; None if they are, or if none can be evicted. Those that leave are passed over."""
        if self._pages.num_free < num_pages and self._pages.num_only_kept:
            return self.kept.next_to_leave("pages")
        if self._slots.num_free < num_state_slots:
            return self.kept.next_to_leave("state_slots")
        return None

    def check(self) -> str:
        """ "" if every page and state slot is accounted for, else what is wrong."""
        held = sum(len(a.pages) for a in self._allocations)
        held += sum(len(kept.pages) for kept in self._making)
        held += sum(kept.num_users * len(kept.pages) for kept in self.kept)
        references = held, sum(len(kept.pages) for kept in self.kept)
        slots = self._slots.num_free + len(self._allocations)
        slots += len(self.kept) + len(self._making)
        if references == self._pages.references and slots == self.size.num_state_slots:
            return ""
        return (
            f"sequences and kept prefixes hold {references} pages, the pool says "
            f"{self._pages.references}; {slots} of {self.size.num_state_slots} state slots "
            "accounted for"
        )

    def _prefix_of(
        self,
        allocation: CacheAllocation,
        keys: PrefixKeys,
        num_tokens: int,
        slot: StateSlot,
        kind: Kind,
    ) -> KeptPrefix:
        """The sequence's first ``num_tokens`` tokens, with the state in ``slot``."""
        num_pages, tail = divmod(num_tokens, self._page_size)
        pages = tuple(allocation.pages[: num_pages + (tail > 0)])
        page_keys = tuple(keys.pages_up_to(num_pages))
        return KeptPrefix(keys.prefix(num_tokens), page_keys, num_tokens, pages, slot, kind)

    def _forget(self, allocation: CacheAllocation) -> None:
        assert not allocation.released, "released twice"
        allocation.released = True
        self._allocations.remove(allocation)

    def _make_room(self, num_pages: int, num_slots: int) -> None:
        """Evict kept prefixes until so much is free, as far as they go."""
        if num_pages > self.free_pages or num_slots > self.free_state_slots:
            return
        while (no_pages := self._pages.num_free < num_pages) or self._slots.num_free < num_slots:
            kept = self.kept.next_to_evict("pages" if no_pages else "state_slots")
            if kept is None:
                return
            self.kept.hand_down(kept)
            self.evict(kept)


def too_long(num_tokens: int, layout: CacheLayout, size: PoolSize) -> str:
    """Why a sequence of so many cached tokens can never fit the cache; "" if it can."""
    if layout.pages_for(num_tokens) <= size.num_pages:
        return ""
    return f"{num_tokens} tokens do not fit into {size.num_pages} pages of {layout.page_size}"
