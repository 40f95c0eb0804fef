"""The kept prefixes of earlier prompts, by key, and the order in which they are evicted. Pure.

A kept prefix is a state slot with the state behind its last token, and the pages of all its tokens.
If its last page is not full, only the prefix's own positions count: the sequence that wrote the
page may go on writing behind them. Pages without a state behind them are of no use to a model with
states. The state of a model without DeltaNet layers is empty: its slot has only an epoch, by which
peers see whether the prefix is still there, and any whole pages of a kept prefix are a prefix, too.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from engine.cache.eviction import EvictionOrder, Resource, UseClock, Uses, Worth
from engine.cache.place_kinds import Kind, UseOdds
from engine.cache.slots import StateSlot
from transport.wire.offers import PrefixName
from transport.wire.page_index import PageIndex
from transport.wire.prefix import KnownPrefixes, PrefixKeys

NO_SLOT = StateSlot(-1, 0)
MAX_ANSWERS = 128
"""Remembered results of ``longest``, with the prompts' keys. Only the prompts that wait first are
looked up in every round."""


@dataclass(eq=False)
class KeptPrefix:
    """A kept prefix. ``key`` as in transport/wire/prefix.py; ``page_keys`` are the keys of its
    first 0, 1, ... whole pages. It cannot be evicted while ``num_users`` batches or copies under
    way read or write it. ``valid`` until it is evicted. ``invalidated``: a result computed from it
    was not finite, so it is not found any more, and is freed with its last user, or when it is
    made. ``leaving``: it is being copied to host memory, to be evicted here. ``kind`` of the place
    where it was kept. ``fallback_odds``: odds that a prompt comes which would have continued from a
    longer prefix, now evicted, and must use this one."""

    key: bytes
    page_keys: tuple[bytes, ...]
    num_tokens: int
    pages: tuple[int, ...]
    slot: StateSlot
    kind: Kind
    fallback_odds: float = 0.0
    num_users: int = 0
    valid: bool = True
    invalidated: bool = False
    leaving: bool = False

    @property
    def pages_key(self) -> bytes:
        """The key of all its whole pages."""
        return self.page_keys[-1]

    @property
    def name(self) -> PrefixName:
        return PrefixName(self.key, self.pages_key, self.num_tokens)

    def part(self, num_pages: int, page_size: int) -> "KeptPrefix":
        """A prefix of the first whole pages, without a slot."""
        keys, pages = self.page_keys[: num_pages + 1], self.pages[:num_pages]
        return KeptPrefix(keys[-1], keys, num_pages * page_size, pages, NO_SLOT, "branch")

    def continues(self, name: PrefixName) -> bool:
        """True if this is the named prefix, or a longer one that has its whole pages."""
        return name.begins(self.key, self.num_tokens, self.page_keys)


class KeptPrefixes:
    """All kept prefixes of one worker, by key. ``num_kept_once`` counts the pages of a prefix that
    no other prefix keeps. ``beside`` is the other memory tier, if there is one. ``by_page``:
    prefixes are found by each of their pages, too."""

    def __init__(
        self,
        page_size: int,
        num_kept_once: Callable[[Sequence[int]], int],
        beside: "KeptPrefixes | None" = None,
        *,
        by_page: bool = False,
    ) -> None:
        self.clock: UseClock = beside.clock if beside is not None else UseClock()
        self.odds: UseOdds = beside.odds if beside is not None else UseOdds()
        self._page_size = page_size
        self._num_kept_once = num_kept_once
        self._order = EvictionOrder(
            self.worth,
            lambda kept: not (kept.num_users or kept.leaving),
            self.clock,
        )
        self._ends: dict[bytes, list[KeptPrefix]] = {}  # by the key of their whole pages
        self._beside = beside
        self._pages = PageIndex[KeptPrefix](page_size) if by_page else None
        self._known = KnownPrefixes(page_size)
        self._begins: Counter[bytes] = Counter()  # how many prefixes begin with a page, by its key
        self._kept: dict[bytes, KeptPrefix] = {}
        self._invalidated: set[KeptPrefix] = set()
        self._new: dict[bytes, KeptPrefix] = {}
        self._answers: dict[tuple[PrefixKeys, int], KeptPrefix | None] = {}
        self._num_pinned = 0

    def __len__(self) -> int:
        return len(self._kept) + len(self._invalidated)

    def __iter__(self) -> Iterator[KeptPrefix]:
        yield from self._kept.values()
        yield from self._invalidated

    def __contains__(self, key: bytes) -> bool:
        return key in self._kept

    @property
    def num_evictable(self) -> int:
        return len(self) - self._num_pinned

    def get(self, key: bytes) -> KeptPrefix | None:
        return self._kept.get(key)

    def longest(self, keys: PrefixKeys, max_tokens: int) -> KeptPrefix | None:
        """The longest kept prefix of at most ``max_tokens`` tokens that the prompt begins with.
        Prompts that wait for memory ask in every round, so the answer is remembered until a prefix
        is added or removed."""
        asked = keys, max_tokens
        if asked not in self._answers:
            if len(self._answers) == MAX_ANSWERS:
                self._answers.clear()
            if keys.num_pages and not self._begins.get(keys.pages(1)):
                max_tokens = min(max_tokens, self._page_size - 1)  # no need to hash whole pages
            found = self._known.longest(keys, max_tokens)
            self._answers[asked] = None if found is None else self._kept[found[0]]
        return self._answers[asked]

    def longer_part(
        self, keys: PrefixKeys, max_tokens: int, found: KeptPrefix | None
    ) -> KeptPrefix | None:
        """The first pages of a kept prefix, if the prompt's first ``max_tokens`` tokens begin with
        more of them than of ``found``: a prefix without a slot, which is not kept yet. None if
        there are none, or prefixes are not found by their pages."""
        if self._pages is None or (most := self._pages.longest(keys, max_tokens)) is None:
            return None
        longer, num_pages = most
        if found is not None and num_pages * self._page_size <= found.num_tokens:
            return None
        return longer.part(num_pages, self._page_size)

    def continuations(self, name: PrefixName) -> list[KeptPrefix]:
        """This prefix, and the longer ones that have its whole pages."""
        return [kept for kept in self._kept.values() if kept.continues(name)]

    def add(self, kept: KeptPrefix, uses: Uses | None = None) -> None:
        """Keep a prefix. ``uses``: its use history, if it comes from another memory tier."""
        assert kept.key not in self._kept, "a prefix kept twice"
        assert not kept.num_users, "added under a batch that writes it"
        self._kept[kept.key] = self._new[kept.key] = kept
        self._known.add(kept.key, kept.pages_key, kept.num_tokens)
        self._answers.clear()
        if self._pages is not None:
            self._pages.add(kept, kept.page_keys[1:])
        if kept.num_tokens >= self._page_size:
            self._begins[kept.page_keys[1]] += 1
            self._ends.setdefault(kept.pages_key, []).append(kept)
        if uses is None:
            self.odds.note_kept(kept.page_keys, kept.kind, kept.num_tokens)
            self._order.use(kept)
            found = self._next_shorter_in_either(kept)
            if found is not None:  # prompts will continue from the longer prefix
                found[0]._order.changed(found[1])
        else:
            self._order.adopt(kept, uses)

    def uses(self, kept: KeptPrefix) -> Uses:
        return self._order.uses(kept)

    def adopt(self, kept: KeptPrefix, uses: Uses) -> None:
        """Take the use history that a prefix had in the memory tier it comes from."""
        self._order.adopt(kept, uses)

    def touch(self, key: bytes) -> None:
        """Note that a prefix was used, so that it is evicted later."""
        kept = self._kept[key]
        kept.leaving = False
        self._order.use(kept)

    def hit(self, key: bytes) -> None:
        """Note that a prompt begins with a prefix, and keeps a longer one itself."""
        self._kept[key].fallback_odds = 0.0
        self.touch(key)

    def note_prompt(self, keys: PrefixKeys, max_tokens: int) -> None:
        """Note a prompt that can reuse at most ``max_tokens`` tokens: a state becomes likelier to
        be used at places of the kind that this prompt continues from, kept or not."""
        self.odds.note_prompt(keys, max_tokens, self._page_size)

    def remove(self, kept: KeptPrefix) -> None:
        assert not kept.num_users, "evicted under a batch that reads it"
        kept.valid = False
        if kept.invalidated:
            self._invalidated.remove(kept)
        else:
            self._lose(kept)

    def invalidate(self, kept: KeptPrefix) -> None:
        """Stop finding a prefix, because its state may be wrong."""
        if not kept.invalidated:
            self._lose(kept)
            self._invalidated.add(kept)
            kept.invalidated = True

    def take_new(self) -> list[KeptPrefix]:
        """The prefixes that were added since the last call, and are still kept."""
        new, self._new = list(self._new.values()), {}
        return new

    def all_new(self) -> None:
        """Let the next ``take_new`` return all kept prefixes."""
        self._new = dict(self._kept)

    def _lose(self, kept: KeptPrefix) -> None:
        del self._kept[kept.key]
        self._new.pop(kept.key, None)
        self._known.remove(kept.key, kept.pages_key)
        self._answers.clear()
        self._order.remove(kept)
        if self._pages is not None:
            self._pages.remove(kept, kept.page_keys[1:])
        if kept.num_tokens >= self._page_size:
            ends = self._ends[kept.pages_key]
            ends.remove(kept)
            if not ends:
                del self._ends[kept.pages_key]
            self._begins[kept.page_keys[1]] -= 1
            if not self._begins[kept.page_keys[1]]:
                del self._begins[kept.page_keys[1]]

    def note_pinned(self, kept: KeptPrefix) -> None:
        self._num_pinned += not kept.num_users
        kept.num_users += 1

    def note_unpinned(self, kept: KeptPrefix) -> None:
        assert kept.num_users, "unpinned twice"
        kept.num_users -= 1
        self._num_pinned -= not kept.num_users

    def next_to_evict(self, short: Resource) -> KeptPrefix | None:
        """The prefix to evict while ``short`` is missing; None if all are in use. Leaving prefixes
        come last."""
        found = self._order.next(short)
        if found is None:
            leaving = (k for k in self._kept.values() if k.leaving and not k.num_users)
            found = next(leaving, None)
        return found

    def next_to_leave(self, short: Resource) -> KeptPrefix | None:
        """As ``next_to_evict``, without the prefixes that are leaving already."""
        return self._order.next(short)

    def note_evicted(self, kept: KeptPrefix) -> None:
        """Re-rank the next shorter prefix after an eviction: it may be the only keeper of the pages
        that they shared."""
        before = self._next_shorter(kept)
        if before is not None:
            self._order.changed(before)

    def pass_on_odds(self, kept: KeptPrefix) -> None:
        """Raise the worth of the next shorter prefix, because ``kept`` is about to be evicted and
        goes to no other memory: prompts that would have used it will use the shorter one."""
        found = self._next_shorter_in_either(kept)
        if found is not None:
            memory, before = found
            before.fallback_odds += self._odds_of(kept)
            num_uses, last = memory.uses(before)
            memory.adopt(before, Uses(num_uses, max(last, self.uses(kept).last)))

    def worth(self, kept: KeptPrefix) -> Worth:
        """The cost of evicting a prefix, and the memory that this frees."""
        found = self._next_shorter_in_either(kept)
        before_len = found[1].num_tokens if found is not None else 0
        num_pages = self._num_kept_once(kept.pages)
        return Worth(kept.num_tokens - before_len, num_pages, self._odds_of(kept))

    def _odds_of(self, kept: KeptPrefix) -> float:
        return self.odds.of(kept.pages_key) + kept.fallback_odds

    def _next_shorter_in_either(self, kept: KeptPrefix) -> "tuple[KeptPrefixes, KeptPrefix] | None":
        """``_next_shorter`` of both memory tiers, with the tier that has it."""
        memories = [self] if self._beside is None else [self, self._beside]
        found = [(each, b) for each in memories if (b := each._next_shorter(kept)) is not None]
        return max(found, key=lambda each: each[1].num_tokens, default=None)

    def _next_shorter(self, kept: KeptPrefix) -> KeptPrefix | None:
        """The longest other prefix that ``kept`` begins with. Of a prefix that ends within a page
        only the whole pages are compared."""
        for key in reversed(kept.page_keys[1:]):
            if key in self._ends:
                ends = [each for each in self._ends[key] if each.num_tokens < kept.num_tokens]
                if ends:
                    return max(ends, key=lambda each: each.num_tokens)
        return None
