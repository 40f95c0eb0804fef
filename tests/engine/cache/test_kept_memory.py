"""Sequences and kept prefixes share one memory, in any order of what may happen to them.

Pages and state slots have contents here: a page the tokens at its positions, a state slot all the
tokens before its state. What is freed is emptied. So what is handed out too early, evicted under a
reader or written while another one needs it changes what a sequence or a prefix should have.
"""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.cache.allocator import CacheAllocation, CacheAllocator
from engine.cache.kept import KeptPrefix
from engine.cache.slots import StateSlot
from transport.wire.errors import PoolExhausted
from transport.wire.layout import PoolSize
from transport.wire.prefix import PrefixKeys
from transport.wire.token_ids import packed

PAGE, SIZE = 4, PoolSize(num_pages=14, num_state_slots=6)

Tokens = tuple[int, ...]


def keys_of(tokens: Tokens) -> PrefixKeys:
    return PrefixKeys("m", "", packed(tokens), PAGE)


def pages_for(num_tokens: int) -> int:
    return -(-num_tokens // PAGE)


@dataclass(eq=False)
class Running:
    """A sequence: ``num_cached`` of its tokens are computed."""

    allocation: CacheAllocation
    tokens: Tokens
    num_cached: int
    making: list[KeptPrefix] = field(default_factory=list)


class Memory:
    """An allocator, what it is told to do, and what it should have then."""

    def __init__(self, rng: random.Random, *, has_states: bool) -> None:
        self.rng, self.has_states = rng, has_states
        self.allocator = CacheAllocator(
            SIZE,
            page_size=PAGE,
            has_states=has_states,
            on_reserve=self.on_reserve,
            on_free=self.on_free,
        )
        self.allocator.prefixes.on_keep = self.on_keep
        self.allocator.prefixes.on_evict = self.on_evict
        self.contents: list[list[int]] = [[-1] * PAGE for _ in range(SIZE.num_pages)]
        self.states: dict[int, Tokens] = {}
        self.free = set(range(SIZE.num_pages))
        self.published: dict[int, int] = {}
        self.last_epoch = [0] * (SIZE.num_state_slots + SIZE.num_pages)
        self.running: list[Running] = []
        self.kept: dict[KeptPrefix, Tokens] = {}
        self.pins: list[KeptPrefix] = []
        self.lost: list[KeptPrefix] = []
        self.keys: dict[Tokens, PrefixKeys] = {}

    # ---- what the allocator says

    def on_reserve(self, slot: StateSlot) -> None:
        assert slot.id not in self.published, "published under another owner"
        assert slot.epoch > self.last_epoch[slot.id]
        self.published[slot.id] = self.last_epoch[slot.id] = slot.epoch

    def on_free(self, slot: StateSlot | None, pages: Sequence[int]) -> None:
        assert not self.free & set(pages), "freed twice"
        self.free |= set(pages)
        for page in pages:
            self.contents[page] = [-1] * PAGE
        if slot is not None:
            assert self.published.pop(slot.id) == slot.epoch
            self.states.pop(slot.id, None)

    def on_keep(self, kept: KeptPrefix) -> None:
        if kept.kind == "branch":  # a part of a longer prefix
            tokens = next(t for k, t in self.kept.items() if kept.key in k.page_keys[1:])
            self.kept[kept] = tokens[: kept.num_tokens]

    def on_evict(self, kept: KeptPrefix) -> None:
        assert kept.invalidated or kept not in self.pins, "evicted under a reader"
        assert kept not in self.lost, "evicted twice"
        assert self.allocator.kept.get(kept.key) is not kept
        self.lost.append(kept)

    # ---- sequences

    def reserve(self) -> None:
        """A prompt that begins as another one does, mostly, and shares what is kept of it."""
        known = [*self.kept.values(), *(each.tokens for each in self.running), ()]
        tokens = self.rng.choice(known)
        tokens = (*tokens[: self.rng.choice([len(tokens), 4, 8])], *self.draw(0, 10), 0)
        num_pages = pages_for(len(tokens))
        prefix = None
        if self.rng.random() < 0.8:
            prefix = self.allocator.prefixes.longest(keys_of(tokens), len(tokens) - 1)
        if prefix is None:
            promised = self.allocator.can_reserve(num_pages)
        else:
            promised = self.allocator.can_share(num_pages, prefix)
        if not promised:
            with self.nothing_taken():
                self.allocator.reserve(num_pages, prefix)
            return
        allocation = self.allocator.reserve(num_pages, prefix)
        num_reused = prefix.num_tokens if prefix else 0
        num_shared, tail = divmod(num_reused, PAGE)
        assert allocation.num_shared == num_shared
        self.take(allocation.pages[num_shared:])
        if prefix is not None:
            assert prefix.valid
            assert tuple(allocation.pages[:num_shared]) == prefix.pages[:num_shared]
            for position in range(tail):
                page = self.contents[prefix.pages[num_shared]]
                self.contents[allocation.pages[num_shared]][position] = page[position]
        self.states[allocation.slot.id] = tokens[:num_reused]
        self.running.append(Running(allocation, tokens, num_reused))

    def compute(self) -> None:
        """Some of a sequence's tokens; the state behind one of them may be kept."""
        running = self.rng.choice(self.running)
        start, allocation = running.num_cached, running.allocation
        end = min(start + self.rng.randint(1, 8), len(running.tokens))
        place, kept = start + self.rng.randint(-2, 8), None
        if start < place <= end:
            keys = keys_of(running.tokens)
            kept = self.allocator.prefixes.begin(allocation.pages, keys, place, "end")
        for position in range(start, end):
            page = allocation.pages[position // PAGE]
            self.contents[page][position % PAGE] = running.tokens[position]
        running.num_cached = end
        self.states[allocation.slot.id] = running.tokens[:end]
        if kept is not None:
            self.states[kept.slot.id] = running.tokens[:place]
            running.making.append(kept)

    def finish_prefix(self) -> None:
        running = self.rng.choice(self.running)
        if not running.making:
            return
        kept, sound = running.making.pop(0), self.rng.random() < 0.8
        known = kept.key in self.allocator.kept
        done = self.allocator.prefixes.finish(kept, sound=sound)
        assert done == kept.valid == (sound and not known)
        if done:
            self.kept[kept] = running.tokens[: kept.num_tokens]

    def grow(self) -> None:
        running = self.rng.choice(self.running)
        tokens, pages = (*running.tokens, *self.draw(1, 6)), running.allocation.pages
        num_before, num_pages = len(pages), pages_for(len(tokens))
        if num_pages - num_before > self.allocator.free_pages:
            with self.nothing_taken():
                self.allocator.grow(running.allocation, num_pages)
            assert len(pages) == num_before
            return
        self.allocator.grow(running.allocation, num_pages)
        self.take(pages[num_before:])
        running.tokens = tokens

    def end(self) -> None:
        running = self.rng.choice(self.running)
        if running.making:
            return
        self.running.remove(running)
        tokens = running.tokens[: running.num_cached]
        if not tokens or self.rng.random() < 0.5:
            self.allocator.release(running.allocation)
            return
        keys = keys_of(running.tokens)
        known = keys.prefix(len(tokens)) in self.allocator.kept
        kept = self.allocator.turn_into_prefix(running.allocation, keys, len(tokens))
        assert (kept is None) == known or not self.has_states
        if kept is not None:
            self.kept[kept] = tokens

    def draw(self, least: int, most: int) -> Tokens:
        return tuple(self.rng.randrange(2) for _ in range(self.rng.randint(least, most)))

    def take(self, pages: list[int]) -> None:
        assert len(set(pages)) == len(pages)
        assert set(pages) <= self.free, "handed out while it is in use"
        self.free -= set(pages)

    @contextmanager
    def nothing_taken(self) -> Iterator[None]:
        before = list(self.lost), set(self.free), dict(self.published)
        with pytest.raises(PoolExhausted):
            yield
        assert before == (self.lost, self.free, self.published)

    # ---- kept prefixes

    def pin(self) -> None:
        kept = self.rng.choice(list(self.kept))
        if not kept.invalidated:
            self.allocator.prefixes.pin(kept)
            self.pins.append(kept)

    def unpin(self) -> None:
        kept = self.pins.pop(self.rng.randrange(len(self.pins)))
        self.allocator.prefixes.unpin(kept)
        assert kept.valid == (not kept.invalidated or kept in self.pins)

    def invalidate(self) -> None:
        kept = self.rng.choice([*self.kept, *self.lost[-2:]])
        self.allocator.prefixes.invalidate(kept)
        assert kept.valid == (kept in self.pins)
        assert kept in self.lost, "a peer may still be told of it"

    def touch(self) -> None:
        kept = self.rng.choice(list(self.kept))
        if not kept.invalidated:
            self.allocator.kept.touch(kept.key)

    def step(self) -> None:
        acts = [self.reserve] * 3
        acts += [self.compute, self.compute, self.finish_prefix, self.grow, self.end] * bool(
            self.running
        )
        acts += [self.pin, self.touch] * bool(self.kept) + [self.unpin] * bool(self.pins)
        if self.kept and self.rng.random() < 0.2:
            acts.append(self.invalidate)
        self.rng.choice(acts)()

    # ---- what holds at any time

    def check(self) -> None:
        self.kept = {kept: tokens for kept, tokens in self.kept.items() if kept.valid}
        self.check_books()
        self.check_contents()
        self.check_lookups()

    def check_books(self) -> None:
        allocator = self.allocator
        assert allocator.check() == ""
        allocator._pages.check()
        allocator._slots.check()
        making = [kept for each in self.running for kept in each.making]
        used = {page for each in self.running for page in each.allocation.pages}
        used |= {page for kept in [*self.pins, *making] for page in kept.pages}
        cached = {page for kept in self.kept for page in kept.pages} - used
        assert allocator.free_pages == SIZE.num_pages - len(used)
        assert allocator.num_pages_cached == len(cached)
        assert self.free == set(range(SIZE.num_pages)) - used - cached
        num_used = len(self.running)
        if self.has_states:
            num_used += len(making) + len(set(self.pins))
        allocator._prefix_slots.check()
        assert allocator.free_state_slots == SIZE.num_state_slots - num_used
        owners = [each.allocation.slot for each in self.running]
        owners += [kept.slot for kept in [*self.kept, *making]]
        assert self.published == dict(owners)
        assert len(owners) == len(self.published)
        ending = [each for each in self.running if self.rng.random() < 0.5]
        holds = [hold for each in ending for hold in self.holds_of(each)]
        others = [
            hold for each in self.running if each not in ending for hold in self.holds_of(each)
        ]
        left = {page for hold in [*others, *(kept.pages for kept in self.pins)] for page in hold}
        assert allocator.num_pages_freed_by(holds) == len({p for h in holds for p in h} - left)

    def holds_of(self, running: Running) -> list[Sequence[int]]:
        return [running.allocation.pages, *(kept.pages for kept in running.making)]

    def check_contents(self) -> None:
        holders: list[tuple[Sequence[int], StateSlot, Tokens]] = [
            (each.allocation.pages, each.allocation.slot, each.tokens[: each.num_cached])
            for each in self.running
        ]
        holders += [(kept.pages, kept.slot, tokens) for kept, tokens in self.kept.items()]
        for pages, slot, tokens in holders:
            found = [token for page in pages for token in self.contents[page]]
            assert tuple(found[: len(tokens)]) == tokens
            assert not self.has_states or self.states[slot.id] == tokens

    def check_lookups(self) -> None:
        assert set(self.allocator.kept) == set(self.kept)
        assert set(self.lost) & set(self.kept) == {kept for kept in self.kept if kept.invalidated}
        for tokens in list(self.kept.values()):
            keys = self.keys.setdefault(tokens, keys_of((*tokens, 0, 1)))
            any_free = self.allocator._prefix_slots.num_free > 0
            found = self.allocator.prefixes.longest(keys, len(tokens))
            valid = {kept: other for kept, other in self.kept.items() if not kept.invalidated}
            begins = [kept for kept, other in valid.items() if tokens[: len(other)] == other]
            best = max(begins, key=lambda kept: kept.num_tokens, default=None)
            assert found is best
            if not self.has_states and any_free:
                # A part is kept by now, so it is among those that the tokens begin with.
                shared = max((num_shared(tokens, other) for other in valid.values()), default=0)
                assert shared <= (best.num_tokens if best is not None else 0)


def num_shared(a: Tokens, b: Tokens) -> int:
    """Length of the whole pages that both begin with."""
    same = next((i for i, pair in enumerate(zip(a, b, strict=False)) if len(set(pair)) > 1), None)
    return (min(len(a), len(b)) if same is None else same) // PAGE * PAGE


@pytest.mark.parametrize("has_states", [True, False], ids=["states", "pages alone"])
@settings(max_examples=120, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_what_sequences_and_prefixes_hold_stays_theirs(has_states: bool, seed: int) -> None:
    memory = Memory(random.Random(seed), has_states=has_states)
    for _ in range(120):
        memory.step()
        memory.check()
