"""Prefixes that the device evicts, kept in host memory: a prefix is in one of the two.

1. ``poll``, called in each round of the worker's loop, evicts from the device ahead of need: while
   less than ``ahead`` of its memory is free, it copies what is evicted next, a batch at a time.
2. When a copy is done its prefix is kept here and evicted there. It stays there alone if it was
   used meanwhile. Nothing on the device is held for a copy: where requests need its memory at once,
   the prefix is evicted, and the copy is thrown away, since the pages may have been written.
3. ``longest`` finds a prefix, and ``fetch`` copies it into memory that its sequence has reserved.
4. ``returned``: what the device keeps is kept here no longer.

Both memories count uses by one clock, so that a prefix has the same worth in both.
Pages and states are in blocks of one pool (transport/copy/host_copy.py).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from engine.cache.allocator import CacheAllocator
from engine.cache.host_blocks import HostBlocks
from engine.cache.kept import KeptPrefix, KeptPrefixes
from engine.cache.slots import StateSlot
from transport.copy.host_copy import HostCopier, HostCopy
from transport.copy.pull import Pull
from transport.wire.layout import CacheLayout, PoolSize
from transport.wire.offers import PrefixName
from transport.wire.prefix import PrefixKeys

MAX_BATCH_BYTES = 512 << 20
"""About 10 ms through PCIe 5. The last prefix of a batch may exceed it."""
MIN_PAGES_AHEAD, MIN_SLOTS_AHEAD = 256, 8
"""A prompt of 16,000 tokens, and the states of two prompts."""
NO_SLOT = StateSlot(-1, 0)


@dataclass(eq=False)
class _Batch:
    """Saves that are copied together: each prefix of the device, with the one that it becomes here.
    ``pages`` are the device's, and ``states`` its slots, each with the blocks that it goes to.
    ``num_freed`` pages are free when all these prefixes are evicted."""

    prefixes: dict[bytes, tuple[KeptPrefix, KeptPrefix]] = field(default_factory=dict)
    pages: dict[int, int] = field(default_factory=dict)
    states: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    num_freed: int = 0
    pull: Pull | None = None


class HostTier:
    """A prefix in host memory is a KeptPrefix without a slot: its ``pages`` are the blocks of its
    pages, and behind them those of its state. ``ahead``: how much of the device is to be free."""

    def __init__(
        self,
        layout: CacheLayout,
        copier: HostCopier,
        allocator: CacheAllocator,
        ahead: PoolSize | None = None,
    ) -> None:
        self.ahead = ahead or _ahead(allocator.size)
        self._layout = layout
        self._copier = copier
        self._allocator = allocator
        self._blocks = HostBlocks(copier.num_blocks)
        self._kept = KeptPrefixes(layout.page_size, self._blocks.num_kept_once, allocator.kept)
        self._saving = _Batch()
        self._fetching: list[tuple[KeptPrefix, Pull]] = []
        self.on_evict: Callable[[KeptPrefix], None] = lambda kept: None
        self.num_evicted = 0

    @property
    def num_kept(self) -> int:
        return len(self._kept)

    @property
    def used_bytes(self) -> int:
        return self._blocks.num_held * self._copier.block_bytes

    @property
    def size_bytes(self) -> int:
        """The host memory that there is by now."""
        return self._copier.num_blocks * self._copier.block_bytes

    @property
    def copying(self) -> bool:
        """Whether ``poll`` has something to wait for."""
        return bool(self._saving.prefixes or self._fetching)

    def returned(self, kept: KeptPrefix) -> None:
        """The device keeps this prefix from now on."""
        here = self._kept.get(kept.key)
        if here is not None:
            self._allocator.kept.adopt(kept, self._kept.uses(here))
            self._remove(here)

    def poll(self) -> None:
        """Keep what has been copied, and start the next batch."""
        self._blocks.grow(self._copier.num_blocks)
        self._end_fetches()
        if self._saving.pull is not None and self._saving.pull.done():
            self._end_saves()
        if self._saving.pull is None and self._copier.num_blocks:
            self._start_saves()

    def longest(self, keys: PrefixKeys, max_tokens: int) -> KeptPrefix | None:
        """The longest of at most ``max_tokens`` tokens that the prompt begins with."""
        return self._kept.longest(keys, max_tokens)

    def from_on(self, name: PrefixName) -> list[KeptPrefix]:
        """This prefix, and the longer ones that have its whole pages."""
        return self._kept.from_on(name)

    def get(self, key: bytes) -> KeptPrefix | None:
        return self._kept.get(key)

    def __iter__(self) -> Iterator[KeptPrefix]:
        return iter(self._kept)

    def fetch(
        self,
        kept: KeptPrefix,
        block_table: tuple[int, ...],
        state_slot: int,
        num_shared: int = 0,
    ) -> Pull:
        """Copy a prefix into the first of these pages, but for ``num_shared`` that have it already,
        and into this slot. They are reserved for its sequence until the copy is done."""
        num_pages = self._layout.pages_for(kept.num_tokens)
        assert kept.valid, "fetched after its eviction"
        assert len(block_table) >= num_pages, f"{len(block_table)} pages for {num_pages}"
        self._kept.hit(kept.key)
        self._blocks.use(kept.pages)  # they stay if it is evicted meanwhile
        pages = tuple(zip(block_table, kept.pages[:num_pages], strict=False))[num_shared:]
        pull = self._copier.fetch(HostCopy(pages, [(state_slot, kept.pages[num_pages:])]))
        self._fetching.append((kept, pull))
        return pull

    def drop(self, key: bytes) -> None:
        """Keep this prefix no longer, if it is here or on its way: it may be wrong."""
        kept = self._kept.get(key)
        if kept is not None:
            self._remove(kept)
            self.on_evict(kept)
        if key in self._saving.prefixes:
            self._saving.prefixes[key][1].valid = False

    def close(self) -> bool:
        """Wait for the copies under way; whether all have ended, so that none writes the cache."""
        return self._copier.close()

    def check(self) -> str:
        """ "" if every block is accounted for, else what is wrong."""
        copied = [here for _, here in self._saving.prefixes.values()]
        copied += [kept for kept, _ in self._fetching]
        references = sum(len(p.pages) for p in copied), sum(len(p.pages) for p in self._kept)
        if references == self._blocks.references:
            return ""
        return (
            f"copies and kept prefixes hold {references} blocks of host memory, the pool says "
            f"{self._blocks.references}"
        )

    def _start_saves(self) -> None:
        batch, num_bytes = self._saving, 0
        while num_bytes < MAX_BATCH_BYTES and (kept := self._next_to_save()) is not None:
            num_freed = self._allocator.kept.worth(kept).num_pages
            num_new = self._add(batch, kept)
            if num_new:
                kept.leaving = True
                batch.num_freed += num_freed
                num_bytes += num_new * self._copier.block_bytes
            elif batch.prefixes or self._fetching:
                break  # these hold blocks that may be enough
            else:
                self._allocator.kept.hand_down(kept)
                self._allocator.prefixes.evict(kept)
        if batch.prefixes:
            batch.pull = self._copier.save(HostCopy(tuple(batch.pages.items()), batch.states))

    def _next_to_save(self) -> KeptPrefix | None:
        num_pages, num_slots = self._saving.num_freed, len(self._saving.prefixes)
        return self._allocator.prefixes.next_to_leave(
            self.ahead.num_pages - num_pages, self.ahead.num_state_slots - num_slots
        )

    def _add(self, batch: _Batch, kept: KeptPrefix) -> int:
        """Add a prefix to a batch if there is room; returns how many blocks it copies."""
        # A prefix that is valid at the batch's end has held its pages all the time, so their copy
        # is good, also if it began for another one that has been evicted.
        copied = {page: batch.pages[page] for page in kept.pages if page in batch.pages}
        blocks = self._blocks.find(kept) | copied
        shared = tuple(blocks.values())
        self._blocks.use(shared)
        missing = [page for page in kept.pages if page not in blocks]
        num_state = self._copier.blocks_per_state
        num_new = len(missing) + num_state
        if not self._make_room(num_new):
            self._blocks.release(shared)
            return 0
        new = sorted(self._blocks.reserve(num_new))  # adjacent blocks are copied together
        state, fresh = tuple(new[:num_state]), dict(zip(missing, new[num_state:], strict=True))
        blocks |= fresh
        batch.pages |= fresh
        batch.states.append((kept.slot.id, state))
        pages = (*(blocks[page] for page in kept.pages), *state)
        here = replace(kept, pages=pages, slot=NO_SLOT, leaving=False)
        batch.prefixes[kept.key] = kept, here
        return num_new

    def _make_room(self, num_blocks: int) -> bool:
        """Evict prefixes until so many blocks are free; False if that cannot be."""
        if num_blocks > self._blocks.num_free + self._blocks.num_only_kept:
            return False
        while self._blocks.num_free < num_blocks:
            kept = self._kept.next_to_evict("pages")
            assert kept is not None, "blocks are kept by no prefix"
            self._kept.hand_down(kept)
            self._remove(kept)
            self.num_evicted += 1
            self.on_evict(kept)
        return True

    def _remove(self, kept: KeptPrefix) -> None:
        self._kept.remove(kept)
        self._blocks.drop(kept.pages)
        self._kept.note_evicted(kept)

    def _end_saves(self) -> None:
        batch, self._saving = self._saving, _Batch()
        for kept, here in batch.prefixes.values():
            if kept.valid and here.valid and kept.leaving and not kept.num_users:
                self._blocks.keep_prefix(here)
                self._kept.add(here, self._allocator.kept.uses(kept))
                self._allocator.prefixes.evict(kept)
            kept.leaving = False
        for _, here in batch.prefixes.values():
            self._blocks.release(here.pages)

    def _end_fetches(self) -> None:
        done = [each for each in self._fetching if each[1].done()]
        for each in done:
            self._fetching.remove(each)
            self._blocks.release(each[0].pages)


def _ahead(size: PoolSize) -> PoolSize:
    """How much of a device is to be free: 1 / 32, or what a long prompt takes at once."""
    return PoolSize(
        min(size.num_pages // 4, max(size.num_pages // 32, MIN_PAGES_AHEAD)),
        min(size.num_state_slots // 4, max(size.num_state_slots // 32, MIN_SLOTS_AHEAD)),
    )
