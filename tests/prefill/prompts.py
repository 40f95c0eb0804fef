"""A prefill scheduler with its prefix cache, and copies that end when a test says so."""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from engine.batch import Sampled, StepResult
from engine.cache.allocator import CacheAllocator
from engine.cache.host_tier import HostTier
from engine.cache.kept import KeptPrefix
from engine.sequence import Scheduled, Sequence
from prefill.limits import PrefillLimits
from prefill.pulls import PrefixPulls
from prefill.reuse import PrefixReuse
from prefill.scheduler import PrefillScheduler
from tests.engine.late_host_copies import LateHostCopier
from transport.copy.host_copy import NoHostMemory
from transport.copy.pull import Copied, Wanted
from transport.copy.queue import CopyQueue
from transport.copy.region import Region
from transport.copy.tensors import CacheTensors
from transport.wire.errors import StaleEpoch
from transport.wire.layout import CHUNK_ALIGNMENT, CacheLayout, PoolSize
from transport.wire.offers import Offer
from transport.wire.prefix import PrefixKeys
from transport.wire.sampling import SamplingParams, StopRule
from transport.wire.token_ids import packed

LAYOUT = CacheLayout("float32", 16, 1, 1, 1, 1, 1, 1, 1, 1, 1)
PAGES_ALONE = CacheLayout("float32", 16, 1, 1, 1, 0, 0, 0, 0, 0, 0)
"""Of a model without states."""
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
        layout: CacheLayout = LAYOUT,
    ) -> None:
        self.rng, self.now, self.layout = rng, 0.0, layout
        self.size = PoolSize(num_pages, slots)
        self.allocator = CacheAllocator(
            self.size, page_size=layout.page_size, has_states=layout.has_states
        )
        self.peer = Peer(rng)
        buffer = torch.zeros(Region.of(layout, self.size).size_bytes, dtype=torch.uint8)
        cache = CacheTensors.over(buffer, layout, self.size)
        self.copier = LateHostCopier(cache, 1, host_blocks) if host_blocks else NoHostMemory()
        ahead = PoolSize(num_pages // 4, slots // 4)
        self.host = HostTier(layout, self.copier, self.allocator, ahead)
        self.allocator.prefixes.on_keep = self.host.returned
        reuse = PrefixReuse(self.allocator, layout, 64, self.host) if enabled else None
        self.pulls = pulls = PrefixPulls(
            self.allocator, self.peer, {PEER}, self.host,
            CopyQueue(cache, TIMEOUT_S, lambda: self.now), min_saved_tokens=64,
        )  # fmt: skip
        self.plan = PrefillScheduler(
            self.allocator, layout, PrefillLimits(tokens, rows), lambda: 0, reuse, pulls
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
        had_work, under_way = self.plan.has_work, len(self.pulls.copies)
        batch = self.plan.schedule()
        pulled = len(self.pulls.copies) > under_way
        assert had_work == (batch is not None or pulled), "has_work and schedule differ"
        if batch is None:
            return pulled
        for sequence, row in zip(batch.sequences, batch.rows, strict=True):
            assert sequence.pulling is None
            self.num_chunks[sequence.request_id] += 1
            start = self.computed.setdefault(sequence.request_id, sequence.beginning.num_tokens)
            assert row.start == start
            end = self.computed[sequence.request_id] = start + row.length
            assert row.sample == (end == sequence.num_tokens)
            assert row.sample or (end - sequence.beginning.num_tokens) % CHUNK_ALIGNMENT == 0
            if row.keep is not None:
                assert 0 < row.keep.num_tokens <= row.length
                kept_at = start + row.keep.num_tokens
                aligned = (kept_at - sequence.beginning.num_tokens) % CHUNK_ALIGNMENT == 0
                assert aligned or not self.layout.has_states
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

    @property
    def kept(self) -> list[KeptPrefix]:
        """Those that a prompt can find."""
        return [kept for kept in [*self.allocator.kept, *self.host] if not kept.invalidated]

    def settle(self) -> None:
        """All that is under way comes to its end; nothing new is launched."""
        for pull, _ in self.peer.pulls:
            pull.ended = True
        while self.host.copying:
            self.end_pull()
            self.host.poll()
        self.pulled()
        while self.launched:
            self.retire()

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
