"""The pages and state slots of prefixes, from the batch or copy that writes one to its eviction.

A prefix is *being made* while a launched batch or a copy writes its state, *kept* from then on
(kept.py), *pinned* while a launched batch or a copy reads it, and *invalidated* once its state may
be wrong: then no prompt finds it any more, and its memory is freed when it is no longer written or
read.
"""

from collections.abc import Callable, Sequence

from engine.cache.eviction import Uses
from engine.cache.kept import KeptPrefix, KeptPrefixes
from engine.cache.pages import PagePool
from engine.cache.place_kinds import Kind
from engine.cache.slots import SlotPool, StateSlot
from transport.wire.offers import PrefixName
from transport.wire.prefix import PrefixKeys


class PrefixMemory:
    """The pages and slots that prefixes hold; sequences hold the others of the two pools.
    ``pages_alone``: the model has no states, so ``slots`` are empty and only prefixes have them.

    ``on_reserve`` and ``on_free`` are the CacheAllocator's. ``on_keep`` is called with each prefix
    that becomes kept, ``on_evict`` with each that can no longer be found.
    """

    def __init__(
        self,
        pages: PagePool,
        slots: SlotPool,
        page_size: int,
        on_reserve: Callable[[StateSlot], None],
        on_free: Callable[[StateSlot | None, Sequence[int]], None],
        *,
        pages_alone: bool = False,
    ) -> None:
        self.on_keep: Callable[[KeptPrefix], None] = lambda kept: None
        self.on_evict: Callable[[KeptPrefix], None] = lambda kept: None
        self._pages, self._slots, self._page_size = pages, slots, page_size
        self._pages_alone = pages_alone
        self.kept = KeptPrefixes(page_size, pages.num_kept_once, by_page=pages_alone)
        self._on_reserve = on_reserve
        self._on_free = on_free
        self._making: set[KeptPrefix] = set()

    @property
    def being_made(self) -> list[KeptPrefix]:
        """The prefixes that launched batches and copies are writing."""
        return list(self._making)

    @property
    def references(self) -> tuple[int, int]:
        """Number of pages that all prefixes use, and number that they keep, as the pool counts."""
        num_uses = sum(len(kept.pages) for kept in self._making)
        num_uses += sum(kept.num_users * len(kept.pages) for kept in self.kept)
        return num_uses, sum(len(kept.pages) for kept in self.kept)

    @property
    def num_slots(self) -> int:
        """Number of slots that prefixes hold, kept or being made."""
        return len(self.kept) + len(self._making)

    def longest(self, keys: PrefixKeys, max_tokens: int) -> KeptPrefix | None:
        """The longest kept prefix of at most ``max_tokens`` tokens that the prompt begins with.

        Where pages alone are a prefix, this may be the first pages of a longer prefix: these are
        kept as a prefix of their own from then on.
        """
        found = self.kept.longest(keys, max_tokens)
        part = self.kept.longer_part(keys, max_tokens, found)
        if part is None or not self._slots.num_free:
            return found
        self._keep_part(part, None)
        return part

    def _keep_part(self, part: KeptPrefix, uses: Uses | None) -> None:
        part.slot = self._slots.reserve()
        self._on_reserve(part.slot)
        self._pages.keep(part.pages)
        self.kept.add(part, uses)
        self.on_keep(part)

    # ---- made and kept

    def begin(
        self, pages: Sequence[int], keys: PrefixKeys, num_tokens: int, kind: Kind
    ) -> KeptPrefix | None:
        """Reserve a state slot for the state behind ``num_tokens`` tokens of a sequence that has
        these pages; a batch or copy is about to write it. None if that prefix is kept already, or
        no slot is free. The prefix must not be used before ``finish``."""
        key = keys.prefix(num_tokens)
        if key in self.kept:
            self.kept.touch(key)
            return None
        if not self._slots.num_free + self.kept.num_evictable:
            return None
        self.make_room(0, 1)
        slot = self._slots.reserve()
        self._on_reserve(slot)
        kept = self._prefix_of(pages, keys, num_tokens, slot, kind)
        self._pages.use(kept.pages)
        self._making.add(kept)
        return kept

    def finish(self, kept: KeptPrefix, *, sound: bool = True) -> bool:
        """Keep a prefix whose state is written. Frees it and returns False if it is not ``sound``,
        was invalidated, or the same prefix was kept meanwhile."""
        self._making.remove(kept)
        if sound and not kept.invalidated and kept.key not in self.kept:
            self._pages.keep(kept.pages)
            self._pages.release(kept.pages)
            self.kept.add(kept)
            self.on_keep(kept)
            return True
        kept.valid = False
        self._on_free(kept.slot, self._pages.release(kept.pages))
        self._slots.release(kept.slot)
        return False

    def take_over(
        self, pages: Sequence[int], keys: PrefixKeys, num_tokens: int, slot: StateSlot
    ) -> KeptPrefix:
        """Keep the state slot of a sequence that has ended, and the pages of its first
        ``num_tokens`` tokens; the sequence's use of all ``pages`` ends."""
        kept = self._prefix_of(pages, keys, num_tokens, slot, "answer")
        self._pages.keep(kept.pages)
        self._on_free(None, self._pages.release(pages))
        self.kept.add(kept)
        self.on_keep(kept)
        return kept

    def continuations(self, name: PrefixName) -> list[KeptPrefix]:
        """This prefix, and the longer ones that have its whole pages, kept or being made."""
        making = (kept for kept in self._making if kept.continues(name))
        return [*self.kept.continuations(name), *making]

    # ---- read, invalidated and evicted

    def pin(self, kept: KeptPrefix) -> None:
        """Protect a prefix from eviction until ``unpin``: a batch or copy is about to read it."""
        self._pages.use(kept.pages)
        self.kept.note_pinned(kept)

    def unpin(self, kept: KeptPrefix) -> None:
        self.kept.note_unpinned(kept)
        self._pages.release(kept.pages)
        if kept.invalidated and not kept.num_users:
            self.evict(kept)

    def invalidate(self, kept: KeptPrefix) -> None:
        """Stop using a prefix whose state may be wrong: it is not found any more, and is freed with
        its last user. A prefix that is being made will not be kept."""
        if kept in self._making:
            kept.invalidated = True
        elif kept.valid:
            if not kept.invalidated:
                self.kept.invalidate(kept)
                self.on_evict(kept)
            if not kept.num_users:
                self.evict(kept)

    def evict(self, kept: KeptPrefix) -> None:
        """Free a kept prefix that nothing under way reads."""
        self.kept.remove(kept)
        if not kept.invalidated:
            self.on_evict(kept)
        self._on_free(kept.slot, self._pages.drop(kept.pages))
        self._slots.release(kept.slot)
        self.kept.note_evicted(kept)

    def make_room(self, num_pages: int, num_slots: int) -> None:
        """Evict kept prefixes until that many pages and state slots are free, or none is left."""
        while (no_pages := self._pages.num_free < num_pages) or self._slots.num_free < num_slots:
            kept = self.kept.next_to_evict("pages" if no_pages else "state_slots")
            if kept is None:
                return
            if no_pages and self._pages_alone:
                self._keep_half(kept)
            self.kept.pass_on_odds(kept)
            self.evict(kept)

    def _keep_half(self, kept: KeptPrefix) -> None:
        """Keep the first half of the pages of a prefix that is about to be evicted, as used as the
        whole prefix. So a long prefix is lost from its end on, and no further than needed."""
        half = kept.part((len(kept.page_keys) - 1) // 2, self._page_size)
        if half.num_tokens and half.key not in self.kept and self._slots.num_free:
            self._keep_part(half, self.kept.uses(kept))

    def next_to_leave(self, num_pages: int, num_state_slots: int) -> KeptPrefix | None:
        """The kept prefix to evict while fewer pages or state slots than these are free; None if
        enough are free, or no prefix can be evicted. Leaving prefixes are skipped."""
        if self._pages.num_free < num_pages and self._pages.num_only_kept:
            return self.kept.next_to_leave("pages")
        if self._slots.num_free < num_state_slots:
            return self.kept.next_to_leave("state_slots")
        return None

    def _prefix_of(
        self,
        pages: Sequence[int],
        keys: PrefixKeys,
        num_tokens: int,
        slot: StateSlot,
        kind: Kind,
    ) -> KeptPrefix:
        """The prefix of the first ``num_tokens`` tokens of a sequence with these pages, with its
        state in ``slot``."""
        num_pages, tail = divmod(num_tokens, self._page_size)
        own = tuple(pages[: num_pages + (tail > 0)])
        page_keys = tuple(keys.pages_up_to(num_pages))
        return KeptPrefix(keys.prefix(num_tokens), page_keys, num_tokens, own, slot, kind)
