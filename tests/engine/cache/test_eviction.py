"""Which kept prefix is evicted next."""

import tracemalloc
from math import sqrt

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.cache.eviction import GAP, EvictionOrder, Resource, Worth


class Cache:
    """Kept prefixes with a worth that the test sets."""

    def __init__(self, **worth: tuple[int, int]) -> None:
        self.worth = {name: Worth(*each) for name, each in worth.items()}
        self.pinned: set[str] = set()
        self.order = EvictionOrder[str](self.worth.__getitem__, lambda k: k not in self.pinned)
        for name in worth:
            self.order.use(name)

    def evict(self, short: Resource) -> str | None:
        name = self.order.next(short)
        if name is not None:
            self.order.remove(name)
        return name


def test_of_equals_the_least_recently_used_is_evicted() -> None:
    cache = Cache(a=(1000, 10), b=(1000, 10), c=(1000, 10))
    cache.worth["d"] = Worth(2000, 20)
    cache.order.use("d")
    assert [cache.evict("pages") for _ in range(5)] == ["a", "b", "c", "d", None]


def test_a_prefix_that_saves_less_for_a_state_slot_is_evicted_first() -> None:
    cache = Cache(long=(9000, 140), short=(500, 8))
    assert cache.evict("state_slots") == "short"


def test_a_prefix_that_saves_less_for_a_page_is_evicted_first() -> None:
    cache = Cache(branch=(8000, 20), leaf=(500, 8))
    cache.order.use("leaf")
    assert cache.evict("state_slots") == "leaf"
    cache = Cache(branch=(500, 4), leaf=(800, 100))
    assert cache.evict("pages") == "leaf"


def test_a_prefix_that_holds_no_page_alone_is_evicted_last_for_pages() -> None:
    cache = Cache(shared=(640, 0), alone=(640, 10))
    assert [cache.evict("pages") for _ in range(3)] == ["alone", "shared", None]


def test_a_prefix_that_was_used_often_stays_longer() -> None:
    cache = Cache(often=(1000, 10))
    for _ in range(10):
        cache.order.use("often")
    for name in ("x", "y", "z"):
        cache.worth[name] = Worth(1000, 10)
        cache.order.use(name)
    assert [cache.evict("pages") for _ in range(4)] == ["x", "y", "z", "often"]


def test_a_prefix_that_is_unlikely_to_be_used_is_evicted_first() -> None:
    cache = Cache(likely=(1000, 10))
    cache.worth["unlikely"] = Worth(3000, 30, odds=0.1)
    cache.order.use("unlikely")
    assert [cache.evict("pages"), cache.evict("pages")] == ["unlikely", "likely"]


def test_what_was_not_used_for_long_is_evicted_before_what_is_less_likely_at_first() -> None:
    cache = Cache(likely=(1000, 10), often=(1000, 10))
    for _ in range(GAP):
        cache.order.use("often")
    cache.worth["unlikely"] = Worth(1000, 10, odds=0.2)
    cache.order.use("unlikely")
    assert cache.evict("pages") == "likely"


def test_a_prefix_in_use_is_passed_over() -> None:
    cache = Cache(a=(1000, 10), b=(1000, 10))
    cache.pinned = {"a"}
    assert cache.order.next("pages") == "b"
    cache.pinned = {"a", "b"}
    assert cache.order.next("pages") is None
    cache.pinned = set()
    assert cache.order.next("pages") == "a"


def test_a_worth_that_rose_is_seen_before_the_eviction() -> None:
    cache = Cache(a=(100, 10), b=(1000, 10))
    cache.worth["a"] = Worth(100_000, 10)
    assert cache.evict("pages") == "b"


def test_a_worth_that_fell_is_seen_when_told() -> None:
    cache = Cache(a=(1000, 10), b=(1000, 10))
    cache.worth["b"] = Worth(10, 10)
    cache.order.changed("b")
    assert cache.evict("state_slots") == "b"


NAMES = st.sampled_from("abcdefgh")
WORTHS = st.builds(Worth, st.integers(0, 5000), st.integers(0, 50), st.floats(0.01, 1))
STEPS = st.lists(
    st.tuples(st.sampled_from(["use", "remove", "pin", "unpin", "evict"]), NAMES, WORTHS),
    max_size=80,
)


@settings(max_examples=300)
@given(STEPS, st.sampled_from(["pages", "state_slots"]))
def test_what_is_evicted_is_worth_at_most_twice_the_least(
    steps: list[tuple[str, str, Worth]], short: Resource
) -> None:
    cache = Cache()
    uses: dict[str, list[int]] = {}
    now = 0

    def score(name: str) -> float:
        times = uses[name]
        worth = cache.worth[name]
        return sqrt(len(times)) * worth.per(short) / (GAP + now - times[-1]) ** 2

    for what, name, worth in steps:
        if what == "use":
            cache.worth[name] = worth
            cache.order.use(name)
            now += 1
            uses.setdefault(name, []).append(now)
        elif what == "remove" and name in uses:
            cache.order.remove(name)
            del uses[name]
        elif what == "pin":
            cache.pinned.add(name)
        elif what == "unpin":
            cache.pinned.discard(name)
        elif what == "evict":
            free = [each for each in uses if each not in cache.pinned]
            evicted = cache.evict(short)
            assert (evicted is None) == (not free)
            if evicted is not None:
                assert evicted in free
                assert score(evicted) <= 2 * min(score(each) for each in free)
                del uses[evicted]
        assert len(cache.order) == len(uses)


def test_uses_without_evictions_take_no_more_and_more_memory() -> None:
    cache = Cache(a=(1000, 10), b=(1000, 10))
    tracemalloc.start()
    try:
        for _ in range(10_000):
            cache.order.use("a")
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert grown < 100_000
