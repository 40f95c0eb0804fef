"""Prefixes of earlier prompts that are kept for later ones, and which of them goes first. Pure.

A kept prefix is a state slot with the state behind its last token, and the pages of all its tokens.
Of a last page that is not full only its own positions count: the sequence that the page comes from
may go on writing behind them. Pages without a state behind them are of no use to this model, so
pages are never kept alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from engine.cache.slots import StateSlot
from transport.wire.prefix import KnownPrefixes, PrefixKeys


@dataclass(eq=False)
class KeptPrefix:
    """``key`` and ``pages_key`` as in transport/wire/prefix.py. ``num_users`` batches or copies
    under way read or write it: it cannot be evicted. ``valid`` until it is evicted."""

    key: bytes
    pages_key: bytes
    num_tokens: int
    pages: tuple[int, ...]
    slot: StateSlot
    num_users: int = 0
    valid: bool = True


class KeptPrefixes:
    """All kept prefixes of one worker, by key, the least recently used first."""

    def __init__(self, page_size: int) -> None:
        self._known = KnownPrefixes(page_size)
        self._kept: dict[bytes, KeptPrefix] = {}
        self._num_pinned = 0

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[KeptPrefix]:
        return iter(self._kept.values())

    def __contains__(self, key: bytes) -> bool:
        return key in self._kept

    @property
    def num_evictable(self) -> int:
        return len(self._kept) - self._num_pinned

    def longest(self, keys: PrefixKeys, max_tokens: int) -> KeptPrefix | None:
        """The longest of at most ``max_tokens`` tokens that the prompt begins with."""
        found = self._known.longest(keys, max_tokens)
        return None if found is None else self._kept[found[0]]

    def add(self, kept: KeptPrefix) -> None:
        assert kept.key not in self._kept, "a prefix kept twice"
        assert not kept.num_users, "added under a batch that writes it"
        self._kept[kept.key] = kept
        self._known.add(kept.key, kept.pages_key, kept.num_tokens)

    def touch(self, key: bytes) -> None:
        """It was used: the last to be evicted now."""
        self._kept[key] = self._kept.pop(key)

    def remove(self, kept: KeptPrefix) -> None:
        assert not kept.num_users, "evicted under a batch that reads it"
        kept.valid = False
        del self._kept[kept.key]
        self._known.remove(kept.key, kept.pages_key)

    def pin(self, kept: KeptPrefix) -> None:
        """Something under way reads it."""
        self._num_pinned += not kept.num_users
        kept.num_users += 1

    def unpin(self, kept: KeptPrefix) -> None:
        assert kept.num_users, "unpinned twice"
        kept.num_users -= 1
        self._num_pinned -= not kept.num_users

    def next_to_evict(self) -> KeptPrefix | None:
        return next((kept for kept in self._kept.values() if not kept.num_users), None)
