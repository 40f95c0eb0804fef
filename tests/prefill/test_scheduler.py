"""Chunked, batched, first come first served; memory is taken whole or not at all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.batch import Sampled, StepResult
from engine.cache.allocator import CacheAllocator
from engine.sequence import Scheduled, Sequence
from prefill.limits import PrefillLimits
from prefill.offers import Offers
from prefill.scheduler import PrefillScheduler
from transport.wire.layout import CHUNK_ALIGNMENT, CacheLayout, PoolSize
from transport.wire.sampling import SamplingParams, StopRule
from transport.wire.token_ids import packed

LAYOUT = CacheLayout("float32", 16, 1, 1, 1, 1, 1, 1, 1, 1, 1)


def sequence(arrival: int, length: int) -> Sequence:
    tokens = packed(range(length))
    return Sequence(f"r{arrival}", 1, arrival, tokens, length, SamplingParams(), StopRule(10))


def scheduler(num_pages: int = 100, slots: int = 8, tokens: int = 128, rows: int = 4):
    allocator = CacheAllocator(PoolSize(num_pages, slots))
    return PrefillScheduler(allocator, LAYOUT, PrefillLimits(tokens, rows)), allocator


def result_of(batch: Scheduled) -> StepResult:
    return StepResult(tuple((Sampled(3),) if row.sample else () for row in batch.rows))


@given(lengths=st.lists(st.integers(1, 700), min_size=1, max_size=12), tokens=st.integers(64, 512))
def test_chunks_cover_each_prompt_once_in_order_and_end_aligned(lengths, tokens) -> None:
    plan, _ = scheduler(num_pages=2_000, slots=16, tokens=tokens)
    sequences = [sequence(i, n) for i, n in enumerate(lengths)]
    for s in sequences:
        plan.add(s)
    seen: dict[str, list[int]] = {s.request_id: [] for s in sequences}
    order = []
    while (batch := plan.schedule()) is not None:
        assert sum(row.length for row in batch.rows) <= tokens
        for s, row in zip(batch.sequences, batch.rows, strict=True):
            assert row.start == len(seen[s.request_id])
            seen[s.request_id] += row.token_ids
            end = row.start + row.length
            assert row.sample == (end == len(s.token_ids))
            assert row.sample or end % CHUNK_ALIGNMENT == 0
        order += [s.arrival for s, _ in plan.retire(batch, result_of(batch))]
    assert {r: len(t) for r, t in seen.items()} == {
        s.request_id: len(s.token_ids) for s in sequences
    }
    assert sorted(order) == list(range(len(lengths)))


def test_a_retried_request_keeps_its_place_in_the_queue() -> None:
    plan, _ = scheduler(slots=1)
    for arrival in (5, 9, 2):
        plan.add(sequence(arrival, 10))
    assert [s.arrival for s in plan.waiting] == [2, 5, 9]
    batch = plan.schedule()
    assert [s.arrival for s in batch.sequences] == [2]


def test_a_prompt_whose_grammar_is_being_compiled_lets_later_ones_pass() -> None:
    plan, allocator = scheduler()
    held = sequence(1, 60)
    held.compiling = True
    plan.add(held)
    assert not plan.has_work
    assert plan.schedule() is None
    plan.add(sequence(2, 60))
    assert [s.arrival for s in plan.schedule().sequences] == [2]
    assert not plan.has_work
    assert allocator.free_state_slots == 7, "the one that waits holds none"
    plan.add(sequence(3, 60))
    held.compiling = False
    plan.compiled()
    assert plan.has_work
    assert [s.arrival for s in plan.schedule().sequences] == [1, 3], "it has kept its place"


def test_a_prompt_that_ends_while_its_grammar_is_compiled_is_not_computed() -> None:
    plan, allocator = scheduler()
    held = sequence(1, 100)
    held.compiling = True
    plan.add(held)
    plan.end(held)
    held.compiling = False
    plan.compiled()
    assert plan.schedule() is None
    assert allocator.free_state_slots == 8


def test_without_room_nothing_is_taken_until_the_offer_leaves() -> None:
    plan, allocator = scheduler(num_pages=4, slots=8)
    offers = Offers(allocator, ttl_s=10.0)
    plan.add(sequence(1, 60))
    plan.add(sequence(2, 10))
    batch = plan.schedule()
    assert [s.arrival for s in batch.sequences] == [1]
    ((done, _),) = plan.retire(batch, result_of(batch))
    offers.add(done, now=0.0)
    assert plan.schedule() is None
    assert not plan.has_work
    epoch = done.allocation.slot.epoch
    assert not offers.release("r1", 1, epoch + 1), "a stale epoch"
    assert not offers.release("r1", 2, epoch), "another attempt"
    assert offers.release("r1", 1, epoch)
    assert not offers.release("r1", 1, epoch), "released twice"
    assert [s.arrival for s in plan.schedule().sequences] == [2]


def test_an_aborted_prompt_frees_its_pages_only_after_its_launched_chunk() -> None:
    plan, allocator = scheduler()
    plan.add(sequence(1, 300))
    batch = plan.schedule()
    plan.end(batch.sequences[0])
    assert allocator.free_state_slots == 7, "freed under a running step"
    assert plan.retire(batch, result_of(batch)) == []
    assert (allocator.free_pages, allocator.free_state_slots) == (100, 8)
    assert allocator.check() == ""


def test_offers_expire_at_their_deadline() -> None:
    plan, allocator = scheduler()
    offers = Offers(allocator, ttl_s=10.0)
    plan.add(sequence(1, 20))
    batch = plan.schedule()
    ((done, _),) = plan.retire(batch, result_of(batch))
    offers.add(done, now=100.0)
    assert offers.expire(109.9) == []
    assert offers.expire(110.0) == [done]
    assert allocator.free_pages == 100


@pytest.mark.parametrize(
    ("limits", "named"), [((63, 1), "max_batch_tokens"), ((64, 0), "max_batch_rows")]
)
def test_limits_name_the_bad_setting(limits, named) -> None:
    with pytest.raises(ValueError, match=named):
        PrefillLimits(*limits)
