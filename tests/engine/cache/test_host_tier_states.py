"""Prefixes that are saved, evicted, fetched and dropped in any order come back right."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.cache.allocator import CacheAllocation
from engine.cache.host_tier import HostTier
from engine.cache.kept import KeptPrefix
from tests.engine.late_host_copies import LateHostCopier
from tests.engine.prefix_device import PAGE, PrefixDevice, keys_of
from tests.transport.exporters import PLAIN as LAYOUT
from transport.copy.pull import Pull
from transport.wire.layout import PoolSize


class HostTierMachine(RuleBasedStateMachine):
    """Prompts that go on like each other or otherwise, with saves, evictions, fetches and copies in
    any order; the device's own prefixes are used too."""

    def __init__(self) -> None:
        super().__init__()
        self.device = PrefixDevice(PoolSize(14, 4))
        self.copier = LateHostCopier(self.device.cache, 1, 12)
        self.tier = HostTier(LAYOUT, self.copier, self.device.allocator)
        self.device.allocator.prefixes.on_keep = self.tier.returned
        self.saved: dict[bytes, tuple[int, ...]] = {}
        self.pinned: list[KeptPrefix] = []
        self.fetches: list[tuple[Pull, CacheAllocation, tuple[int, ...]]] = []

    @rule(
        choices=st.lists(st.integers(0, 1), min_size=1, max_size=4),
        tail=st.integers(0, PAGE - 1),
        place=st.integers(1, 4 * PAGE),
        end=st.sampled_from(["release", "keep"]),
    )
    def prompt(self, choices: list[int], tail: int, place: int, end: str) -> None:
        tokens = self._tokens(choices, tail)
        keys, allocator = keys_of(tokens), self.device.allocator
        if not allocator.can_reserve(LAYOUT.pages_for(len(tokens))):
            return
        prefix = allocator.kept.longest(keys, len(tokens) - 1)
        if prefix is not None and not allocator.can_share(LAYOUT.pages_for(len(tokens)), prefix):
            prefix = None
        allocation = self.device.run(tokens, prefix)
        if place <= len(tokens):
            self._save(self.device.keep(allocation, tokens, place), tokens)
        if end == "release":
            allocator.release(allocation)
        else:
            self._save(allocator.turn_into_prefix(allocation, keys, len(tokens)), tokens)

    @rule(choices=st.lists(st.integers(0, 1), min_size=1, max_size=4), tail=st.integers(0, PAGE))
    def fetch(self, choices: list[int], tail: int) -> None:
        tokens = self._tokens(choices, tail)
        kept = self.tier.longest(keys_of(tokens), len(tokens))
        if kept is None or not self.device.allocator.can_reserve(LAYOUT.pages_for(len(tokens))):
            return
        allocation = self.device.allocator.reserve(LAYOUT.pages_for(len(tokens)))
        pull = self.tier.fetch(kept, tuple(allocation.pages), allocation.slot.id)
        self.fetches.append((pull, allocation, tokens[: kept.num_tokens]))

    @rule(which=st.integers(0, 5), num_runs=st.integers(1, 8))
    def copy(self, which: int, num_runs: int) -> None:
        under_way = self.copier.under_way
        if under_way:
            copy = under_way[which % len(under_way)]
            for _ in range(num_runs):
                copy.step()

    @rule(num_pages=st.integers(0, 14), num_slots=st.integers(0, 4))
    def change_what_is_to_be_free(self, num_pages: int, num_slots: int) -> None:
        self.tier.ahead = PoolSize(num_pages, num_slots)

    @rule(which=st.integers(0, 3))
    @precondition(lambda self: len(self.device.allocator.kept))
    def use(self, which: int) -> None:
        kept = list(self.device.allocator.kept)
        self.device.allocator.kept.touch(kept[which % len(kept)].key)

    @rule(which=st.integers(0, 3))
    @precondition(lambda self: len(self.device.allocator.kept))
    def pin(self, which: int) -> None:
        kept = list(self.device.allocator.kept)
        self.pinned.append(kept[which % len(kept)])
        self.device.allocator.prefixes.pin(self.pinned[-1])

    @rule()
    @precondition(lambda self: self.pinned)
    def unpin(self) -> None:
        self.device.allocator.prefixes.unpin(self.pinned.pop())

    @rule()
    def poll(self) -> None:
        self.tier.poll()

    @rule(which=st.integers(0, 3))
    @precondition(lambda self: len(self.device.allocator.kept))
    def evict(self, which: int) -> None:
        kept = [kept for kept in self.device.allocator.kept if not kept.num_users]
        if kept:
            self.device.allocator.prefixes.evict(kept[which % len(kept)])

    @rule(which=st.integers(0, 3))
    @precondition(lambda self: self.saved)
    def drop(self, which: int) -> None:
        self.tier.drop(list(self.saved)[which % len(self.saved)])

    @rule()
    @precondition(lambda self: self.copier.num_blocks < 36)
    def grow(self) -> None:
        self.copier.grow()

    @invariant()
    def fetched_prefixes_are_right(self) -> None:
        for pull, allocation, tokens in self.fetches:
            if pull.done():
                assert self.device.holds(allocation.pages, allocation.slot.id, tokens)
                self.device.allocator.release(allocation)
        self.fetches = [each for each in self.fetches if not each[1].released]

    @invariant()
    def a_prefix_is_in_one_memory(self) -> None:
        assert not {kept.key for kept in self.tier} & {k.key for k in self.device.allocator.kept}

    @invariant()
    def books_balance(self) -> None:
        assert self.tier.check() == ""
        assert self.device.allocator.check() == ""
        self.tier._blocks.check()

    def teardown(self) -> None:
        while self.pinned:
            self.unpin()
        self.tier.ahead = PoolSize(0, 0)
        for _ in range(200):
            self.tier.poll()
            self.copier.end_all()
            if not self.tier.copying:
                break
        self.fetched_prefixes_are_right()
        assert not self.fetches
        assert self.tier._blocks.references[0] == 0
        self.device.evict_all()
        for kept in list(self.tier._kept):
            tokens = self.saved[kept.key]
            allocation = self.device.allocator.reserve(LAYOUT.pages_for(len(tokens)))
            self.tier.fetch(kept, tuple(allocation.pages), allocation.slot.id)
            self.copier.end_all()
            assert self.device.holds(allocation.pages, allocation.slot.id, tokens)
            self.device.allocator.release(allocation)

    @staticmethod
    def _tokens(choices: list[int], tail: int) -> tuple[int, ...]:
        """Prompts of whole pages out of two, then the first tokens of a third."""
        pages = [token for c in choices for token in range(100 * c, 100 * c + PAGE)]
        return (*pages, *range(300, 300 + tail))

    def _save(self, kept: KeptPrefix | None, tokens: tuple[int, ...]) -> None:
        if kept is not None:
            self.saved[kept.key] = tokens[: kept.num_tokens]


HostTierMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestHostTier = HostTierMachine.TestCase
