"""The host tier keeps prefixes that the device evicts; a prefix is in one of the two tiers.

1. ``poll``, called in each round of the worker's loop, evicts from the device ahead of need: while
   less than ``ahead`` of its memory is free, it copies the next prefixes to evict, in batches.
2. When a copy is done, its prefix is kept here and evicted there, or only kept there if it was used
   meanwhile. A copy holds nothing on the device: if requests need its memory at once, the prefix is
   evicted, and the copy is dropped, since the pages may have been written.
3. ``longest`` finds a prefix, and ``fetch`` copies it into memory that its sequence has reserved.
4. ``returned`` drops a prefix that the device keeps again.

Both tiers count uses by one clock, so that a prefix has the same worth in both.
Pages and states are in blocks of one pool (transport/copy/host_copy.py).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from engine.cache.allocator import CacheAllocator
from engine.cache.host_blocks import HostBlocks
from engine.cache.kept import NO_SLOT, KeptPrefix, KeptPrefixes
from transport.copy.host_copy import HostCopier, HostCopy
from transport.copy.pull import Pull
from transport.wire.layout import CacheLayout, PoolSize
from transport.wire.offers import PrefixName
from transport.wire.prefix import PrefixKeys

MAX_BATCH_BYTES = 512 << 20
"""Size of a batch: about 10 ms through PCIe 5. The last prefix of a batch may exceed it."""
MIN_PAGES_AHEAD, MIN_SLOTS_AHEAD = 256, 8
"""Least memory of the device to keep free: a prompt of 16,000 tokens, the states of two prompts."""


@dataclass(eq=False)
class _Batch:
    """Saves that are copied together: each prefix on the device, with its copy in host memory.
    ``pages`` and ``states`` have the device's pages and state slots, each with its blocks.
    ``num_freed``: pages that become free when all these prefixes are evicted."""

    prefixes: dict[bytes, tuple[KeptPrefix, KeptPrefix]] = field(default_factory=dict)
    pages: dict[int, int] = field(default_factory=dict)
    states: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    num_freed: int = 0
    pull: Pull | None = None


class HostTier:
    """The prefixes in host memory. Each is a KeptPrefix without a slot: its ``pages`` are the
    blocks of its pages, followed by the blocks of its state. ``ahead``: memory of the device to
    keep free."""

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
        self._kept = KeptPrefixes(
            layout.page_size,
            self._blocks.num_kept_once,
            allocator.kept,
            by_page=not layout.has_states,
        )
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
        """Bytes of host memory available so far."""
        return self._copier.num_blocks * self._copier.block_bytes

    @property
    def copying(self) -> bool:
        """True if copies are under way, for which ``poll`` waits."""
        return bool(self._saving.prefixes or self._fetching)

    def returned(self, kept: KeptPrefix) -> None:
        """Drop a prefix here, because the device keeps it from now on."""
        here = self._kept.get(kept.key)
        if here is not None:
            self._allocator.kept.adopt(kept, self._kept.uses(here))
            self._remove(here)

    def poll(self) -> None:
        """Keep the prefixes that have been copied, and start the next batch."""
        self._blocks.grow(self._copier.num_blocks)
        self._end_fetches()
        if self._saving.pull is not None and self._saving.pull.done():
            self._end_saves()
        if self._saving.pull is None and self._copier.num_blocks:
            self._start_saves()

    def longest(self, keys: PrefixKeys, max_tokens: int) -> KeptPrefix | None:
        """The longest prefix in host memory, of at most ``max_tokens`` tokens, of the prompt. As in
        ``PrefixMemory.longest``, it may be a part of a longer prefix, unless the device keeps that
        part."""
        found = self._kept.longest(keys, max_tokens)
        part = self._kept.longer_part(keys, max_tokens, found)
        if part is None or part.key in self._allocator.kept:
            return found
        self._blocks.keep_prefix(part)
        self._kept.add(part)
        return part

    def continuations(self, name: PrefixName) -> list[KeptPrefix]:
        """This prefix, and the longer ones that have its whole pages."""
        return self._kept.continuations(name)

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
        """Copy a prefix into the first pages of ``block_table``, except ``num_shared`` pages that
        hold it already, and into ``state_slot``. All are reserved for its sequence until the copy
        is done."""
        num_pages = self._layout.pages_for(kept.num_tokens)
        assert kept.valid, "fetched after its eviction"
        assert len(block_table) >= num_pages, f"{len(block_table)} pages for {num_pages}"
        self._kept.hit(kept.key)
        self._blocks.use(kept.pages)  # the blocks stay if the prefix is evicted meanwhile
        pages = tuple(zip(block_table, kept.pages[:num_pages], strict=False))[num_shared:]
        pull = self._copier.fetch(HostCopy(pages, [(state_slot, kept.pages[num_pages:])]))
        self._fetching.append((kept, pull))
        return pull

    def drop(self, key: bytes) -> None:
        """Drop a prefix that may be wrong, if it is here or being copied here."""
        kept = self._kept.get(key)
        if kept is not None:
            self._remove(kept)
            self.on_evict(kept)
        if key in self._saving.prefixes:
            self._saving.prefixes[key][1].valid = False

    def close(self) -> bool:
        """Wait for copies under way; True if all have ended, so that none writes the cache."""
        return self._copier.close()

    def check(self) -> str:
        """The problem with the counts of blocks; "" if every block is accounted for."""
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
            if num_new is not None:
                kept.leaving = True
                batch.num_freed += num_freed
                num_bytes += num_new * self._copier.block_bytes
            elif batch.prefixes or self._fetching:
                break  # the prefixes being saved hold blocks that may be enough
            else:
                self._allocator.kept.pass_on_odds(kept)
                self._allocator.prefixes.evict(kept)
        if batch.prefixes:
            batch.pull = self._copier.save(HostCopy(tuple(batch.pages.items()), batch.states))

    def _next_to_save(self) -> KeptPrefix | None:
        num_pages, num_slots = self._saving.num_freed, len(self._saving.prefixes)
        return self._allocator.prefixes.next_to_leave(
            self.ahead.num_pages - num_pages, self.ahead.num_state_slots - num_slots
        )

    def _add(self, batch: _Batch, kept: KeptPrefix) -> int | None:
        """Add a prefix to a batch; returns the number of blocks to copy, 0 if its pages are here
        already and it has no state. None: there is no room."""
        # A prefix that is valid at the batch's end has held its pages all the time, so their copy
        # is good, even if it was begun for another prefix that has been evicted meanwhile.
        copied = {page: batch.pages[page] for page in kept.pages if page in batch.pages}
        blocks = self._blocks.find(kept) | copied
        shared = tuple(blocks.values())
        self._blocks.use(shared)
        missing = [page for page in kept.pages if page not in blocks]
        num_state = self._copier.blocks_per_state
        num_new = len(missing) + num_state
        if not self._make_room(num_new):
            self._blocks.release(shared)
            return None
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
        """Evict prefixes until ``num_blocks`` blocks are free; False if that is impossible."""
        if num_blocks > self._blocks.num_free + self._blocks.num_only_kept:
            return False
        while self._blocks.num_free < num_blocks:
            kept = self._kept.next_to_evict("pages")
            assert kept is not None, "blocks are kept by no prefix"
            self._kept.pass_on_odds(kept)
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
    """Memory of the device to keep free: 1 / 32, or as much as a long prompt needs."""
    return PoolSize(
        min(size.num_pages // 4, max(size.num_pages // 32, MIN_PAGES_AHEAD)),
        min(size.num_state_slots // 4, max(size.num_state_slots // 32, MIN_SLOTS_AHEAD)),
    )
