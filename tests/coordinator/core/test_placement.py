"""Placement never promises memory twice, and spreads what it places."""

import random
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from coordinator.core.contract import SequenceRequest
from coordinator.core.placement.choice import (
    choose_decode,
    choose_generate,
    choose_prefill,
    large_enough,
)
from coordinator.core.request import Request, State
from coordinator.core.settings import PlacementLimits
from coordinator.core.workers.registry import Registry
from coordinator.core.workers.worker import Worker
from tests.coordinator.counted import assert_counted
from transport.wire.layout import CacheLayout, PoolSize
from transport.wire.memory_export import MemoryExport
from transport.wire.messages import Hello, Role
from transport.wire.sampling import SamplingParams, StopRule
from transport.wire.token_ids import packed

LAYOUT = CacheLayout("float32", 16, 1, 1, 1, 1, 1, 1, 1, 1, 1)
LIMITS = PlacementLimits(
    max_tokens_ahead=512, max_tokens_ahead_generating=1024, prefill_watermark=0.9
)


class Pool:
    """Workers of one role, and requests placed there as the dispatcher would."""

    def __init__(self, role: Role, sizes: list[PoolSize]) -> None:
        self.role: Role = role
        registry = Registry()
        for i, size in enumerate(sizes):
            export = MemoryExport("shm", f"w{i}", 1, LAYOUT, size)
            longest, slots = size.num_pages * LAYOUT.page_size, size.num_state_slots
            hello = Hello(f"w{i}", role, "m", "cpu", 1, longest, slots, export)
            registry.add(hello, 0.0)
        self.workers = registry.all()
        self._numbers = count(1)

    def request(self, length: int, failed_at: str = "") -> Request:
        number = next(self._numbers)
        spec = SequenceRequest(f"r{number}", packed((1,) * length), SamplingParams(), StopRule(100))
        return Request(spec, number, failed_at=failed_at)

    def choose(self, request: Request) -> Worker | None:
        match self.role:
            case "prefill":
                workers = large_enough(self.workers, request.num_tokens)
                place = choose_prefill(workers, request, LIMITS)
            case "decode":
                return choose_decode(large_enough(self.workers, request.max_len), request)
            case "colocated":
                workers = large_enough(self.workers, request.max_len)
                place = choose_generate(workers, request, LIMITS)
        return None if place is None else place.worker

    def place(self, length: int, failed_at: str = "") -> Worker | None:
        request = self.request(length, failed_at)
        worker = self.choose(request)
        if worker is not None:
            request.state = State.DECODING if self.role == "decode" else State.PREFILLING
            worker.load.add(request)
            worker.load.last_placed = next(self._numbers)
        return worker

    def began(self, request_id: str) -> None:
        """The first token of a request has arrived."""
        (load,) = (w.load for w in self.workers if request_id in w.load.requests)
        request = load.requests[request_id]
        request.state = State.DECODING
        load.recount(request)

    def loads(self) -> list[int]:
        return [len(worker.load.requests) for worker in self.workers]


roles = st.sampled_from(["prefill", "decode", "colocated"])
pool_sizes = st.lists(
    st.builds(PoolSize, st.integers(1, 60), st.integers(1, 8)), min_size=1, max_size=4
)


@pytest.mark.parametrize("role", ["decode", "colocated"])
def test_new_sequences_even_out_the_members_of_a_group(role) -> None:
    """The fullest member sets the time of a step that all compute together."""
    draw = random.Random(5)
    pool = Pool(role, [PoolSize(400, 64)] * 3)
    for _ in range(400):
        placed = [(w, r) for w in pool.workers for r in w.load.requests.values()]
        if placed and draw.random() < 0.45:
            worker, request = draw.choice(placed)
            worker.load.remove(request)
        elif len(placed) < 90:
            fewest = min(pool.loads())
            before = pool.loads()
            worker = pool.place(draw.randint(1, 60))
            assert before[pool.workers.index(worker)] == fewest


@given(
    role=roles,
    sizes=pool_sizes,
    events=st.lists(st.tuples(st.sampled_from("pppge"), st.integers(1, 300)), max_size=60),
)
def test_a_busy_worker_is_never_promised_more_than_it_has(role, sizes, events) -> None:
    pool = Pool(role, sizes)
    for kind, number in events:
        placed = [(w, r) for w in pool.workers for r in w.load.requests.values()]
        if kind == "p":
            before = {w.instance: len(w.load.requests) for w in pool.workers}
            ahead = {w.instance: w.load.tokens_ahead for w in pool.workers}
            worker = pool.place(number)
            size = worker.hello.memory.pools if worker else None
            if size and LAYOUT.pages_for(number + (role != "prefill")) > size.num_pages:
                worker.load.remove([*worker.load.requests.values()][-1])  # it refuses that
            elif size and before[worker.instance]:
                assert len(worker.load.requests) <= size.num_state_slots
                assert worker.load.free_pages >= 0
                if role == "prefill":
                    assert ahead[worker.instance] < LIMITS.max_tokens_ahead
                if role == "colocated":
                    most = LIMITS.max_tokens_ahead_generating
                    assert worker.load.tokens_ahead <= most or worker.load.tokens_ahead == number
        elif kind == "g" and placed:
            worker, request = placed[number % len(placed)]
            request.state = State.DECODING
            request.output_ids.append(1)
            worker.load.recount(request)
        elif placed:
            worker, request = placed[number % len(placed)]
            worker.load.remove(request)
            worker.load.remove(request)
        for worker in pool.workers:
            assert_counted(worker)


@given(role=roles, num_workers=st.integers(1, 5), num_requests=st.integers(1, 30))
def test_equal_requests_spread_within_one(role, num_workers, num_requests) -> None:
    pool = Pool(role, [PoolSize(1_000, 64)] * num_workers)
    for _ in range(num_requests):
        assert pool.place(10) is not None
    assert max(pool.loads()) - min(pool.loads()) <= 1


@given(role=roles, num_workers=st.integers(1, 5), num_requests=st.integers(1, 30))
def test_requests_one_after_another_take_turns(role, num_workers, num_requests) -> None:
    """Also after a worker has come back new, which must not get all that it missed."""
    pool = Pool(role, [PoolSize(1_000, 64)] * num_workers)
    times = dict.fromkeys((worker.instance for worker in pool.workers), 0)
    pool.workers[-1].last_placed = 0
    for worker in pool.workers[:-1]:
        worker.load.last_placed = next(pool._numbers)
    for _ in range(num_requests):
        worker = pool.place(10)
        assert worker is not None
        (request,) = worker.load.requests.values()
        worker.load.remove(request)
        times[worker.instance] += 1
    assert max(times.values()) - min(times.values()) <= 1


def test_a_request_waits_for_the_member_with_fewer_sequences() -> None:
    pool = Pool("colocated", [PoolSize(1000, 64)] * 2)
    for _ in range(8):  # 1,024 tokens ahead of each
        assert pool.place(256)
    first, _ = pool.workers
    pool.began("r1")
    assert pool.place(256) is first
    assert pool.loads() == [5, 4]
    pool.began("r5")
    assert pool.place(256) is None, "the first has one more, and prompts for now"
    pool.began("r9")
    pool.began("r13")
    assert pool.place(256) is first, "it would soon have nothing to compute"


@given(role=roles, lengths=st.lists(st.integers(1, 200), min_size=1, max_size=20))
def test_a_worker_that_failed_a_request_is_its_last_choice(role, lengths) -> None:
    pool = Pool(role, [PoolSize(100, 4)] * 3)
    for length in lengths:
        for worker in pool.workers:
            request = pool.request(length, failed_at=worker.instance)
            chosen = pool.choose(request)
            others = [w for w in pool.workers if w is not worker]
            rest = Pool(role, [])
            rest.workers = others
            assert (chosen is worker) == (chosen is not None and rest.choose(request) is None)
        pool.place(length)


def test_a_draining_worker_gets_nothing() -> None:
    for role in ("prefill", "decode", "colocated"):
        pool = Pool(role, [PoolSize(100, 4)] * 2)
        pool.workers[0].draining = True
        assert pool.place(10) is pool.workers[1]
        pool.workers[1].draining = True
        assert pool.place(10) is None


def test_a_request_waits_for_the_worker_that_can_hold_it_to_its_end() -> None:
    """Prefill holds the prompt alone; a request here asks for 100 tokens of output."""
    for role, length in (("prefill", 170), ("decode", 70), ("colocated", 70)):
        pool = Pool(role, [PoolSize(10, 4), PoolSize(12, 4)])
        small, large = pool.workers
        while (worker := pool.place(length)) is not None:
            assert worker is large
        assert pool.loads()[0] == 0, "though it has room"
        assert pool.place(10) is small
        large.draining = True
        small.load.requests.clear()
        assert pool.place(length) is small, "it may end early"


def test_what_no_worker_can_hold_is_given_to_the_largest_at_once_to_be_refused() -> None:
    for role in ("prefill", "decode", "colocated"):
        pool = Pool(role, [PoolSize(10, 4), PoolSize(12, 4)])
        for _ in range(6):
            pool.place(20)
        assert min(pool.loads()) > 0
        assert pool.place(200) is pool.workers[1]


def test_the_kinder_load_wins() -> None:
    """Prefill by tokens ahead, decode by sequences, then by free pages."""
    prefill = Pool("prefill", [PoolSize(100, 8)] * 2)
    assert [prefill.place(n) for n in (100, 10, 10, 10)] == [
        prefill.workers[0], *[prefill.workers[1]] * 3,
    ]  # fmt: skip
    decode = Pool("decode", [PoolSize(100, 8), PoolSize(200, 8)])
    assert [decode.place(10) for _ in range(3)] == [
        decode.workers[1], decode.workers[0], decode.workers[1],
    ]  # fmt: skip


def test_pages_that_sequences_share_count_once() -> None:
    """As the last heartbeat said, until requests leave."""
    pool = Pool("decode", [PoolSize(12, 8)])
    (worker,) = pool.workers
    first, second = pool.request(64), pool.request(64)
    for request in (first, second):
        worker.load.add(request)
    assert pool.place(40) is None, "10 pages are counted, 2 of them may grow"
    worker.take_gauges(replace(worker.gauges, shared_pages=4))
    assert worker.load.free_pages == 6
    assert pool.place(40) is worker
    worker.load.remove(second)
    assert worker.load.num_pages_shared == 0, (
        "those of the request that has left may be the shared ones"
    )
    assert_counted(worker)


def test_a_prefill_worker_has_its_next_prompt_before_it_needs_it() -> None:
    pool = Pool("prefill", [PoolSize(200, 8)])
    assert pool.place(400)
    assert pool.place(400), "however long, behind fewer tokens than the limit"
    assert pool.place(1) is None
