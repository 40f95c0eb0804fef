"""Who gives way when pages are short: as few as possible, the youngest, and never for ever."""

import random
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decode.scheduler import DecodeScheduler
from engine.batch import Sampled, StepResult
from engine.cache.allocator import CacheAllocator
from engine.sequence import Scheduled, Sequence
from transport.wire.layout import CacheLayout, PoolSize
from transport.wire.prefix import PrefixKeys
from transport.wire.sampling import SamplingParams, StopRule
from transport.wire.token_ids import packed

LAYOUT = CacheLayout("float32", 16, 1, 1, 1, 1, 1, 1, 1, 1, 1)
STOP_ID = 7


class World:
    """A scheduler whose steps retire ``lookahead`` rounds late; who gave way comes back as soon
    as there is room, in the order of arrival. Sequences share the pages of what is kept."""

    def __init__(self, size: PoolSize, lookahead: int) -> None:
        self.allocator = CacheAllocator(size, page_size=LAYOUT.page_size)
        self.plan = DecodeScheduler(self.allocator, LAYOUT)
        self.lookahead = lookahead
        self.waiting: list[Sequence] = []
        self.launched: deque[Scheduled] = deque()
        self.num_preempted = 0

    def ask(self, arrival: int, length: int, max_tokens: int) -> None:
        stop = StopRule(max_tokens, stop_token_ids=(STOP_ID,))
        tokens = packed([1] * length)
        self.waiting.append(
            Sequence(f"r{arrival}", 1, arrival, tokens, length - 1, SamplingParams(), stop)
        )

    def keep(self, num_tokens: int) -> None:
        """A prefix that sequences of more tokens begin with."""
        allocation = self.allocator.reserve(LAYOUT.pages_for(num_tokens))
        keys = PrefixKeys("m", "", packed([1] * num_tokens), LAYOUT.page_size)
        self.allocator.turn_into_prefix(allocation, keys, num_tokens)

    def admit(self) -> None:
        self.waiting.sort(key=lambda s: s.arrival)
        while self.waiting:
            sequence = self.waiting[0]
            num_pages = LAYOUT.pages_for(sequence.num_tokens)
            keys = PrefixKeys("m", "", sequence.token_ids, LAYOUT.page_size)
            prefix = self.allocator.kept.longest(keys, sequence.num_tokens - 1)
            with_room = num_pages + len(self.plan.running)
            if prefix is not None and not self.allocator.can_share(with_room, prefix):
                prefix = None
            if prefix is None and not self.allocator.can_reserve(with_room):
                return
            sequence = self.waiting.pop(0)
            sequence.allocation = self.allocator.reserve(num_pages, prefix)
            sequence.num_cached = sequence.num_tokens - 1
            self.plan.add(sequence)

    def round(self, token_ids: random.Random | None = None) -> Scheduled | None:
        self.admit()
        least = self.least_victims()
        lasts = [
            s for s in self.plan.running if s.num_output + s.in_flight + 1 == s.stop.max_tokens
        ]
        scheduled = self.plan.schedule()
        num_victims = len(self.plan.growth.preempted)
        assert self.plan.growth.preempted == least[:num_victims]
        assert num_victims == len(least) or lasts, "only a last step of this round spares one more"
        self.num_preempted += num_victims
        for s in self.plan.growth.preempted:
            self.waiting.append(
                Sequence(s.request_id, s.attempt + 1, s.arrival, s.token_ids[:], s.num_prompt,
                         s.sampling, s.stop)
            )  # fmt: skip
        self.plan.growth.preempted.clear()
        if scheduled is not None:
            self.launched.append(scheduled)
        while len(self.launched) > (self.lookahead if scheduled else 0):
            self.retire(self.launched.popleft(), token_ids)
        assert self.allocator.check() == ""
        return scheduled

    def retire(self, scheduled: Scheduled, token_ids: random.Random | None) -> None:
        drawn = (token_ids.randrange(20) if token_ids else 1 for _ in scheduled.rows)
        self.plan.process_results(
            scheduled, StepResult(tuple((Sampled(token_id),) for token_id in drawn))
        )

    def least_victims(self) -> list[Sequence]:
        """The fewest of the youngest whose pages, with all that come back anyway, are enough for
        everybody else's next token."""
        running = self.plan.running
        stepping = [s for s in running if s.num_output + s.in_flight < s.stop.max_tokens]
        returning = [*self.plan.retiring, *(s for s in running if s not in stepping)]
        for num_victims in range(len(stepping) + 1):
            stay = stepping[: len(stepping) - num_victims]
            go = stepping[len(stepping) - num_victims :]
            wanted = sum(
                max(0, LAYOUT.pages_for(s.num_cached + 1) - len(s.allocation.pages)) for s in stay
            )
            if wanted <= self.allocator.free_pages + self.num_only_of([*returning, *go]):
                return go[::-1]
        raise AssertionError("with nobody left nothing is wanted")

    def num_only_of(self, sequences: list[Sequence]) -> int:
        """Pages that no other sequence has."""
        others = [s for s in [*self.plan.running, *self.plan.retiring] if s not in sequences]
        pages, shared = (
            {page for sequence in each for page in sequence.allocation.pages}
            for each in (sequences, others)
        )
        return len(pages - shared)


@pytest.mark.parametrize("lookahead", [0, 1])
@pytest.mark.parametrize(("num_sequences", "num_victims"), [(16, 1), (64, 4)])
def test_a_common_page_boundary_costs_as_few_as_it_must(
    num_sequences: int, num_victims: int, lookahead: int
) -> None:
    world = World(PoolSize(17 * num_sequences, num_sequences), lookahead)
    world.admit = lambda: None
    for arrival in range(num_sequences):
        world.ask(arrival, 17 * 16 - 3, max_tokens=1000)
        world.plan.add(_held(world, world.waiting.pop()))
    for _ in range(8):
        world.round()
    assert world.num_preempted == num_victims
    assert len(world.plan.running) == num_sequences - num_victims


def _held(world: World, sequence: Sequence) -> Sequence:
    keys = PrefixKeys("m", "", sequence.token_ids, LAYOUT.page_size)
    prefix = world.allocator.kept.longest(keys, sequence.num_tokens - 1)
    sequence.allocation = world.allocator.reserve(LAYOUT.pages_for(sequence.num_tokens), prefix)
    sequence.num_cached = sequence.num_tokens - 1
    return sequence


def test_a_sequence_does_not_wait_for_pages_that_it_shares_with_one_that_ends() -> None:
    world = World(PoolSize(6, 3), lookahead=1)
    world.keep(64)
    for arrival in range(2):
        world.ask(arrival, 79, max_tokens=100)  # four pages of each are shared
    world.admit = lambda: None
    world.plan.add(_held(world, world.waiting.pop()))
    world.plan.add(_held(world, world.waiting.pop()))
    old, young = world.plan.running
    assert world.allocator.num_pages_freed_by([young.allocation.pages]) == 1
    for _ in range(3):
        world.round()
    assert world.plan.running == [old]
    assert world.num_preempted == 1


@settings(max_examples=150, deadline=None)
@given(
    lookahead=st.integers(0, 2),
    lengths=st.lists(st.tuples(st.integers(1, 90), st.integers(2, 60)), min_size=1, max_size=12),
    spare_pages=st.integers(0, 12),
    num_shared=st.sampled_from([0, 16, 50]),
    seed=st.integers(0, 2**32),
)
def test_everybody_gets_to_the_end_and_the_oldest_goes_first(
    lookahead: int,
    lengths: list[tuple[int, int]],
    spare_pages: int,
    num_shared: int,
    seed: int,
) -> None:
    rng = random.Random(seed)
    largest = max(LAYOUT.pages_for(length + max_tokens) for length, max_tokens in lengths)
    world = World(PoolSize(largest + spare_pages, len(lengths)), lookahead)
    if 0 < num_shared <= largest * LAYOUT.page_size:
        world.keep(num_shared)
    for arrival, (length, max_tokens) in enumerate(lengths):
        world.ask(arrival, length, max_tokens)
    without_oldest = 0
    while world.waiting or world.plan.running or world.launched:
        if world.plan.running and rng.random() < 0.01:
            world.plan.end(rng.choice(world.plan.running))
        oldest = world.plan.running[0] if world.plan.running else None
        scheduled = world.round(rng)
        took_part = oldest is None or (scheduled is not None and oldest in scheduled.sequences)
        without_oldest = 0 if took_part or oldest.ended else without_oldest + 1
        assert without_oldest <= lookahead + 1, "the oldest stands still"
    assert world.allocator.free_pages == world.allocator.size.num_pages
    assert world.allocator.free_state_slots == world.allocator.size.num_state_slots
