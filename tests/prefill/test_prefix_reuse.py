"""Prompts that share beginnings, whatever comes, goes and ends meanwhile: each is computed once and
whole, none is left waiting, and all memory comes back."""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.batch import Sampled, StepResult
from engine.cache.allocator import CacheAllocator
from engine.cache.host_tier import HostTier
from engine.sequence import Scheduled, Sequence
from prefill.pulls import PrefixPulls
from prefill.reuse import PrefixReuse
from prefill.scheduler import PrefillLimits, PrefillScheduler
from tests.engine.late_host_copies import LateHostCopier
from transport.copy.host_copy import NoHostMemory
from transport.copy.pull import Copied, Wanted
from transport.copy.region import Region
from transport.copy.tensors import CacheTensors
from transport.wire.errors import StaleEpoch
from transport.wire.layout import CHUNK_ALIGNMENT, CacheLayout, PoolSize
from transport.wire.offers import Offer
from transport.wire.prefix import PrefixKeys
from transport.wire.sampling import SamplingParams, StopRule
from transport.wire.token_ids import packed

LAYOUT = CacheLayout("float32", 16, 1, 1, 1, 1, 1, 1, 1, 1, 1)
PEER = "peer"
TIMEOUT_S = 5.0


@dataclass(eq=False)
class LatePull:
    stale: bool
    ended: bool = False

    def done(self) -> bool:
        return self.ended

    def wait(self, timeout_s: float) -> bool:
        return self.ended

    def result(self) -> Copied:
        assert self.ended
        if self.stale:
            raise StaleEpoch("evicted meanwhile")
        return Copied(1, 0.0)


@dataclass(eq=False)
class Peer:
    """A peer's memory: its copies end when the test says so, some of them too late."""

    rng: random.Random
    stale: float = 0.3
    pulls: list[tuple[LatePull, Wanted]] = field(default_factory=list)

    def pull(self, wanted: list[Wanted]) -> list[LatePull]:
        (each,) = wanted
        assert len(set(each.block_table)) == len(each.block_table)
        pull = LatePull(self.rng.random() < self.stale)
        self.pulls.append((pull, each))
        return [pull]


class Prompts:
    """A scheduler with its prefix cache, and what is under way."""

    def __init__(
        self,
        rng: random.Random,
        *,
        num_pages: int = 1_000,
        slots: int = 30,
        tokens: int = 256,
        rows: int = 4,
        enabled: bool = True,
        host_blocks: int = 0,
    ) -> None:
        self.rng, self.now = rng, 0.0
        self.size = PoolSize(num_pages, slots)
        self.allocator = CacheAllocator(self.size, page_size=LAYOUT.page_size)
        self.peer = Peer(rng)
        buffer = torch.zeros(Region.of(LAYOUT, self.size).size_bytes, dtype=torch.uint8)
        cache = CacheTensors.over(buffer, LAYOUT, self.size)
        self.copier = LateHostCopier(cache, 1, host_blocks) if host_blocks else NoHostMemory()
        self.host = HostTier(LAYOUT, self.copier)
        self.allocator.on_keep = self.host.save
        reuse = PrefixReuse(self.allocator, LAYOUT, 64, self.host) if enabled else None
        self.pulls = pulls = PrefixPulls(
            self.allocator, self.peer, {PEER}, cache, self.host, TIMEOUT_S, lambda: self.now,
            min_saved_tokens=64,
        )  # fmt: skip
        self.plan = PrefillScheduler(
            self.allocator, LAYOUT, PrefillLimits(tokens, rows), lambda: 0, reuse, pulls
        )
        self.launched: list[Scheduled] = []
        self.offered: list[Sequence] = []
        self.computed: dict[str, int] = {}
        self.num_chunks: Counter[str] = Counter()
        self.done: list[Sequence] = []
        self.num_added = 0

    def add(self, tokens: list[int], source: int = 0, *, whole: bool = False) -> Sequence:
        """``source`` tokens of it are kept by the peer; ``whole``: it must be computed whole."""
        self.num_added += 1
        ids = packed(tokens)
        sequence = Sequence(
            f"r{self.num_added}", 1, self.num_added, ids, len(tokens), SamplingParams(), StopRule(9)
        )
        if not whole:
            sequence.keys = PrefixKeys("m", "", ids, LAYOUT.page_size)
        if source:
            pages = tuple(range(LAYOUT.pages_for(source)))
            sequence.source = Offer(PEER, pages, 0, 1, source)
        self.plan.add(sequence)
        return sequence

    def launch(self) -> bool:
        """One round's batch; False if there was nothing to launch."""
        had_work, under_way = self.plan.has_work, len(self.pulls._under_way)
        batch = self.plan.schedule()
        pulled = len(self.pulls._under_way) > under_way
        assert had_work == (batch is not None or pulled), "has_work and schedule differ"
        if batch is None:
            return pulled
        for sequence, row in zip(batch.sequences, batch.rows, strict=True):
            assert sequence.pulling is None
            self.num_chunks[sequence.request_id] += 1
            start = self.computed.setdefault(sequence.request_id, sequence.num_reused)
            assert row.start == start
            end = self.computed[sequence.request_id] = start + row.length
            assert row.sample == (end == sequence.num_tokens)
            assert row.sample or (end - sequence.num_reused) % CHUNK_ALIGNMENT == 0
            if row.keep is not None:
                assert 0 < row.keep.num_tokens <= row.length
                kept_at = start + row.keep.num_tokens
                assert (kept_at - sequence.num_reused) % CHUNK_ALIGNMENT == 0
                assert kept_at < sequence.num_tokens
                assert row.keep.state_slot != row.state_slot
        self.launched.append(batch)
        return True

    def retire(self) -> None:
        """The oldest launched batch is done."""
        batch = self.launched.pop(0)
        result = StepResult(tuple((Sampled(3),) if row.sample else () for row in batch.rows))
        for sequence, _ in self.plan.retire(batch, result):
            assert self.computed[sequence.request_id] == sequence.num_tokens
            self.done.append(sequence)
            self.offered.append(sequence)

    def release(self, sequence: Sequence) -> None:
        """A finished prompt leaves."""
        self.offered.remove(sequence)
        self.plan.end(sequence)

    def end_pull(self) -> None:
        late = [pull for pull, _ in self.peer.pulls if not pull.ended]
        if late:
            self.rng.choice(late).ended = True
        if isinstance(self.copier, LateHostCopier) and self.copier.under_way:
            copy = self.rng.choice(self.copier.under_way)
            for _ in range(self.rng.choice([1, 20, 200])):
                copy.step()

    def pulled(self) -> list[Sequence]:
        self.host.poll()
        return [sequence for sequence, _ in self.plan.pulled()]

    def run(self) -> None:
        """Until all are done: each round launches something while prompts wait."""
        while self.plan.sequences():
            assert self.launch() or self.launched, "prompts wait for nothing"
            while self.launched:
                self.retire()
            for sequence in list(self.offered):
                self.release(sequence)

    def check_empty(self) -> None:
        assert not self.plan.retiring
        assert not self.plan.sequences()
        assert self.allocator.check() == ""
        free = self.allocator.free_pages, self.allocator.free_state_slots
        assert free == (self.size.num_pages, self.size.num_state_slots)


def draw(rng: random.Random, length: int) -> list[int]:
    return [rng.randrange(1_000) for _ in range(length)]


def prompts_of(rng: random.Random) -> Iterator[list[int]]:
    """Prompts that begin with some of earlier ones, and again and again with the same."""
    earlier = [draw(rng, 400)]
    while True:
        begin = rng.choice([*earlier[:2], *earlier[-3:]])
        begin = begin[: rng.choice([len(begin), rng.randint(0, len(begin))])]
        earlier.append([*begin, *draw(rng, rng.randint(1, 200))][:700])
        yield earlier[-1]


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_every_prompt_is_computed_and_all_memory_comes_back(seed: int) -> None:
    rng = random.Random(seed)
    prompts = Prompts(
        rng, num_pages=rng.choice([50, 80, 300]), slots=rng.randint(2, 12),
        tokens=rng.choice([64, 128, 512]), rows=rng.choice([1, 4]), enabled=rng.random() < 0.9,
        host_blocks=rng.choice([0, 60, 400]),
    )  # fmt: skip
    drawn, ended = prompts_of(rng), list[Sequence]()
    most = rng.randint(5, 40)
    for _ in range(20_000):
        if prompts.num_added == most and not prompts.plan.sequences():
            break
        prompts.now += 0.1
        chance = rng.random()
        if chance < 0.3 and prompts.num_added < most:
            tokens = next(drawn)
            source = rng.randint(1, len(tokens)) if rng.random() < 0.3 else 0
            prompts.add(tokens, source, whole=rng.random() < 0.1)
        elif chance < 0.33 and prompts.plan.sequences():
            ended.append(rng.choice(prompts.plan.sequences()))
            prompts.plan.end(ended[-1])
        elif chance < 0.5:
            prompts.end_pull()
        elif chance < 0.65 and prompts.offered:
            leaving = rng.choice(prompts.offered)
            if rng.random() < 0.1:
                prompts.plan.doubt(leaving)
            prompts.release(leaving)
        elif chance < 0.8 and prompts.launched:
            prompts.retire()
        else:
            ended += prompts.pulled()
            assert prompts.launch() or prompts.num_added < most or not stuck(prompts)
        assert prompts.allocator.check() == prompts.host.check() == ""
    for pull, _ in prompts.peer.pulls:
        pull.ended = True
    while prompts.host.copying:
        prompts.end_pull()
        prompts.host.poll()
    prompts.pulled()
    while prompts.launched:
        prompts.retire()
    for sequence in list(prompts.offered):
        prompts.release(sequence)
    prompts.check_empty()
    assert len(prompts.done) + len(ended) == most
    assert len({id(sequence) for sequence in [*prompts.done, *ended]}) == most


def stuck(prompts: Prompts) -> bool:
    """Whether prompts wait although nothing is under way that they could wait for."""
    under_way = prompts.launched or prompts.offered or prompts.plan.retiring
    copying = prompts.pulls.under_way
    return bool(prompts.plan.sequences()) and not under_way and not copying


@pytest.mark.parametrize("rows", [1, 4])
def test_what_prompts_that_come_together_share_is_computed_once(rows: int) -> None:
    rng = random.Random(1)
    prompts = Prompts(rng, rows=rows)
    system = draw(rng, 960)
    for _ in range(12):
        prompts.add([*system, *draw(rng, 100)])
    prompts.run()
    prompts.check_empty()
    assert [each.num_reused for each in prompts.done] == [0, *[960] * 11]


def test_prompts_that_begin_alike_in_several_lengths_do_not_cut_a_prompt_into_small_chunks() -> (
    None
):
    rng = random.Random(2)
    prompts = Prompts(rng, tokens=4_096)
    long = draw(rng, 8_000)
    first = prompts.add(long)
    prompts.launch()
    for length in range(4_200, 7_900, 64):
        prompts.add([*long[:length], *draw(rng, 10)])
    prompts.run()
    prompts.check_empty()
    assert prompts.num_chunks[first.request_id] <= 10


@pytest.mark.parametrize("how", ["ended while it waits", "ended under a batch", "doubted"])
def test_a_prompt_goes_on_when_the_one_that_it_waits_for_ends(how: str) -> None:
    rng = random.Random(3)
    prompts = Prompts(rng, tokens=128)
    system = draw(rng, 640)
    first = prompts.add([*system, *draw(rng, 20)])
    second = prompts.add([*system, *draw(rng, 20)])
    prompts.launch()
    assert second in prompts.plan.waiting
    if how == "ended while it waits":
        prompts.retire()
    prompts.plan.end(first)
    if how == "doubted":
        prompts.plan.doubt(first)
    assert prompts.launch()
    assert second in prompts.plan.filling
    prompts.run()
    prompts.check_empty()


def test_a_prompt_that_waits_is_not_overtaken_for_ever() -> None:
    """Each newcomer shares more and more with the oldest one that waits."""
    rng = random.Random(4)
    prompts = Prompts(rng, tokens=64, rows=2, num_pages=600, slots=3)
    oldest = draw(rng, 1_300)
    prompts.add([*oldest[:200], *draw(rng, 300)])
    prompts.launch()
    waiting = prompts.add(oldest)
    for _ in range(100):
        prompts.add([*oldest[: rng.randint(64, 1_200)], *draw(rng, 200)])
        prompts.launch()
        prompts.retire()
        for sequence in list(prompts.offered):
            prompts.release(sequence)
        if waiting in prompts.done:
            return
    raise AssertionError("the oldest prompt has waited for 100 rounds")


def test_a_pull_that_comes_too_late_ends_its_prompt_and_keeps_its_memory_until_it_is_over() -> None:
    prompts = Prompts(random.Random(5))
    late = prompts.add(draw(random.Random(5), 300), source=200)
    assert prompts.launch()
    prompts.now += TIMEOUT_S - 0.1
    assert prompts.pulled() == []
    prompts.now += 0.1
    assert prompts.pulled() == [late]
    assert prompts.pulled() == [], "reported twice"
    assert prompts.allocator.free_state_slots == prompts.size.num_state_slots - 1
    prompts.end_pull()
    assert prompts.pulled() == []
    prompts.check_empty()


def test_a_pull_that_finds_its_prefix_evicted_is_computed_instead() -> None:
    rng = random.Random(6)
    prompts = Prompts(rng)
    prompts.peer.stale = 1.0
    first = prompts.add(draw(rng, 300), source=200)
    prompts.launch()
    prompts.end_pull()
    assert prompts.pulled() == []
    prompts.run()
    assert (first.num_reused, first.reused) == (0, "")
    assert len(prompts.peer.pulls) == 1
    prompts.check_empty()


def test_a_prompt_is_computed_behind_what_came_from_a_peer() -> None:
    rng = random.Random(7)
    prompts = Prompts(rng)
    prompts.peer.stale = 0.0
    first = prompts.add(draw(rng, 300), source=205)
    prompts.launch()
    prompts.end_pull()
    prompts.pulled()
    prompts.run()
    assert (first.num_reused, first.reused) == (205, "peer")
    prompts.check_empty()
