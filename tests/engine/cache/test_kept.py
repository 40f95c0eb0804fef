"""What the allocator knows of kept prefixes, and which of them it evicts."""

from array import array

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from engine.cache.allocator import CacheAllocator
from engine.cache.kept import KeptPrefix
from transport.wire.layout import PoolSize
from transport.wire.prefix import PrefixKeys

PAGE = 4


class Cache:
    """Computes prompts at once, and keeps states where it is told."""

    def __init__(self, num_pages: int, num_state_slots: int, *, has_states: bool = True) -> None:
        size = PoolSize(num_pages, num_state_slots)
        self.allocator = CacheAllocator(size, page_size=PAGE, has_states=has_states)
        self.ids: dict[KeptPrefix, tuple[int, ...]] = {}

    def compute(self, ids: tuple[int, ...], places: tuple[int, ...], *, answer: bool) -> int:
        """Returns how many tokens were reused."""
        keys = PrefixKeys("model", "", array("i", ids), PAGE)
        prefix = self.allocator.prefixes.longest(keys, len(ids) - 1)
        if prefix is not None:
            self.allocator.kept.hit(prefix.key)
        start = prefix.num_tokens if prefix is not None else 0
        allocation = self.allocator.reserve(-(-len(ids) // PAGE), prefix)
        for place in places:
            if start < place < len(ids):
                kept = self.allocator.prefixes.begin(allocation.pages, keys, place, "end")
                if kept is not None and self.allocator.prefixes.finish(kept):
                    self.ids[kept] = ids[:place]
        if answer:
            kept = self.allocator.turn_into_prefix(allocation, keys, len(ids))
            if kept is not None:
                self.ids[kept] = ids
        else:
            self.allocator.release(allocation)
        return start

    def kept(self) -> list[tuple[int, ...]]:
        return sorted(self.ids[kept] for kept in self.allocator.kept)


def test_where_pages_are_short_a_prefix_without_pages_of_its_own_stays() -> None:
    cache = Cache(num_pages=11, num_state_slots=9)
    base = tuple(range(16))
    cache.compute((*base, 99), (16,), answer=False)
    cache.compute((*base, *range(20, 28), 99), (24,), answer=False)  # base has no page alone now
    cache.compute((*range(50, 58), 99), (8,), answer=False)
    cache.compute(tuple(range(60, 76)), (), answer=False)
    assert base in cache.kept()
    assert len(cache.kept()) == 2


def test_pages_alone_are_evicted_from_the_end_of_the_prefix_that_was_used_least() -> None:
    cache = Cache(num_pages=20, num_state_slots=2, has_states=False)
    old, new = tuple(range(32)), tuple(range(50, 82))
    for ids in (old, new):
        assert cache.compute((*ids, 99), (32,), answer=False) == 0
    assert cache.compute((*new, 99, 98), (), answer=False) == 32
    assert cache.compute(tuple(range(90, 112)), (), answer=False) == 0  # needs 6 pages, 4 are free
    assert cache.compute((*old, 97), (), answer=False) == 16
    assert cache.compute((*new, 97), (), answer=False) == 32


def test_where_state_slots_are_short_the_prefix_that_saves_least_goes() -> None:
    cache = Cache(num_pages=99, num_state_slots=4)
    cache.compute(tuple(range(41)), (36, 40), answer=False)  # the second saves four tokens
    cache.compute(tuple(range(50, 63)), (12,), answer=False)
    cache.compute(tuple(range(70, 83)), (12,), answer=False)
    assert cache.kept() == [tuple(range(36)), tuple(range(50, 62)), tuple(range(70, 82))]


def test_a_prefix_of_a_kind_that_is_never_used_is_evicted_first() -> None:
    cache = Cache(num_pages=99, num_state_slots=3)
    kept = cache.allocator.kept
    for number in range(100, 120):
        keys = PrefixKeys("model", "", array("i", [number] * 9), PAGE)
        kept.odds.note_kept(keys.pages_up_to(1), "end", 4)
        kept.note_prompt(keys, 7)
        kept.odds.note_kept(keys.pages_up_to(2), "answer", 8)
    cache.compute(tuple(range(21)), (20,), answer=False)
    cache.compute(tuple(range(50, 91)), (), answer=True)  # newer, and it saves more
    cache.compute(tuple(range(60, 73)), (12,), answer=False)
    assert cache.kept() == [tuple(range(20)), tuple(range(60, 72))]


def test_a_prefix_is_worth_more_once_a_longer_one_is_evicted_until_a_prompt_uses_it() -> None:
    cache = Cache(num_pages=99, num_state_slots=9)
    cache.compute(tuple(range(41)), (20, 40), answer=False)
    kept = cache.allocator.kept
    shorter, longer = sorted(kept, key=lambda each: each.num_tokens)
    before, last = kept.worth(shorter).odds, kept.uses(longer).last
    handed = kept.worth(longer).odds
    kept.pass_on_odds(longer)
    cache.allocator.prefixes.evict(longer)
    assert kept.worth(shorter).odds == before + handed
    assert kept.uses(shorter).last == last
    kept.hit(shorter.key)
    assert kept.worth(shorter).odds == before


class KeptMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.cache = Cache(num_pages=24, num_state_slots=6)

    @rule(
        ids=st.lists(st.integers(0, 1), min_size=1, max_size=40),
        places=st.lists(st.integers(1, 10).map(lambda n: n * PAGE), max_size=3),
        answer=st.booleans(),
    )
    def compute(self, ids: list[int], places: list[int], answer: bool) -> None:
        self.cache.compute(tuple(ids), tuple(sorted(places)), answer=answer)

    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        kept = sorted(self.cache.allocator.kept, key=lambda each: each.key)
        if kept:
            self.cache.allocator.prefixes.evict(data.draw(st.sampled_from(kept)))

    @invariant()
    def what_is_known_of_each_is_true(self) -> None:
        allocator = self.cache.allocator
        assert allocator.check() == ""
        all_kept = list(allocator.kept)
        for kept in all_kept:
            others = {page for other in all_kept if other is not kept for page in other.pages}
            worth = allocator.kept.worth(kept)
            assert worth.num_pages == sum(page not in others for page in kept.pages)
            before = [
                other.num_tokens
                for other in all_kept
                if other.num_tokens < kept.num_tokens
                and (num := other.num_tokens // PAGE)
                and other.page_keys == kept.page_keys[: num + 1]
            ]
            assert worth.saved_tokens == kept.num_tokens - max(before, default=0)


KeptMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestKept = KeptMachine.TestCase
