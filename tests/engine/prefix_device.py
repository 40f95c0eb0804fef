"""A cache whose content tells of which tokens it is, and its allocator."""

from collections.abc import Sequence

from engine.cache.allocator import CacheAllocation, CacheAllocator
from engine.cache.kept import KeptPrefix
from engine.cache.slots import StateSlot
from tests.transport.exporters import PLAIN as LAYOUT
from tests.transport.exporters import own_cache
from transport.wire.layout import PoolSize
from transport.wire.prefix import PrefixKeys
from transport.wire.token_ids import packed

PAGE = LAYOUT.page_size
POISON = -7.0


def keys_of(tokens: Sequence[int], page_size: int = PAGE) -> PrefixKeys:
    return PrefixKeys("model", "", packed(tokens), page_size)


def _mark(tokens: Sequence[int], num_tokens: int) -> float:
    """What is written for the last of the first tokens: exact in bfloat16."""
    return float(hash(tuple(tokens[:num_tokens])) % 251 + 1)


class PrefixDevice:
    """Freed memory is poisoned."""

    def __init__(self, size: PoolSize) -> None:
        self.cache = own_cache(size, 1, LAYOUT)
        self.allocator = CacheAllocator(size, page_size=PAGE, on_free=self._poison)

    def run(self, tokens: Sequence[int], prefix: KeptPrefix | None = None) -> CacheAllocation:
        """Compute a sequence's cache behind ``prefix``."""
        start = prefix.num_tokens if prefix is not None else 0
        allocation = self.allocator.reserve(LAYOUT.pages_for(len(tokens)), prefix)
        if start % PAGE and prefix is not None:
            self.cache.kv[allocation.pages[start // PAGE]] = self.cache.kv[prefix.pages[-1]]
        self.write(allocation, tokens, start)
        return allocation

    def write(self, allocation: CacheAllocation, tokens: Sequence[int], start: int) -> None:
        for i in range(start, len(tokens)):
            page = allocation.pages[i // PAGE]
            self.cache.kv[page, :, :, i % PAGE] = _mark(tokens, i + 1)
        self.write_state(allocation.slot.id, tokens, len(tokens))

    def write_state(self, slot: int, tokens: Sequence[int], num_tokens: int) -> None:
        self.cache.conv[slot] = self.cache.recurrent[slot] = _mark(tokens, num_tokens)

    def keep(
        self, allocation: CacheAllocation, tokens: Sequence[int], num_tokens: int
    ) -> KeptPrefix | None:
        """Keep the first tokens of a sequence, beside it."""
        kept = self.allocator.prefixes.begin(allocation.pages, keys_of(tokens), num_tokens, "end")
        if kept is None:
            return None
        self.write_state(kept.slot.id, tokens, num_tokens)
        assert self.allocator.prefixes.finish(kept)
        return kept

    def keep_only(self, tokens: Sequence[int]) -> KeptPrefix:
        """Keep a whole sequence, which ends."""
        kept = self.allocator.turn_into_prefix(self.run(tokens), keys_of(tokens), len(tokens))
        assert kept is not None
        return kept

    def evict_all(self) -> None:
        for kept in list(self.allocator.kept):
            self.allocator.prefixes.evict(kept)

    def holds(self, pages: Sequence[int], slot: int, tokens: Sequence[int]) -> bool:
        """Whether these pages and this state slot are those of the tokens."""
        positions = all(
            bool((self.cache.kv[pages[i // PAGE], :, :, i % PAGE] == _mark(tokens, i + 1)).all())
            for i in range(len(tokens))
        )
        state = _mark(tokens, len(tokens))
        states = self.cache.conv[slot], self.cache.recurrent[slot]
        return positions and all(bool((each == state).all()) for each in states)

    def _poison(self, slot: StateSlot | None, pages: Sequence[int]) -> None:
        self.cache.kv[list(pages)] = POISON
        if slot is not None:
            self.cache.conv[slot.id] = self.cache.recurrent[slot.id] = POISON
