"""All run while there are pages; the youngest gives way; nothing is freed under a step."""

from dataclasses import replace

from decode.scheduler import DecodeScheduler
from engine.batch import Sampled, StepResult
from engine.cache.allocator import CacheAllocator
from engine.sequence import Sequence
from transport.wire.layout import CacheLayout, PoolSize
from transport.wire.sampling import SamplingParams, StopRule
from transport.wire.token_ids import packed

LAYOUT = CacheLayout("float32", 16, 1, 1, 1, 1, 1, 1, 1, 1, 1)


def running(plan, allocator, arrival: int, length: int = 16, max_tokens: int = 100) -> Sequence:
    sequence = Sequence(
        f"r{arrival}", 1, arrival, packed(range(length)), length - 1, SamplingParams(),
        StopRule(max_tokens, stop_token_ids=(7,)), num_cached=length - 1,
    )  # fmt: skip
    sequence.allocation = allocator.reserve(LAYOUT.pages_for(length))
    plan.add(sequence)
    return sequence


def setup(num_pages: int = 10):
    allocator = CacheAllocator(PoolSize(num_pages, 4))
    return DecodeScheduler(allocator, LAYOUT), allocator


def tokens(batch, token_id: int = 1) -> StepResult:
    return StepResult(tuple((Sampled(token_id),) for _ in batch.rows))


def test_two_steps_may_be_under_way_and_rows_follow_each_other() -> None:
    plan, allocator = setup()
    sequence = running(plan, allocator, 1)
    first, second = plan.schedule(), plan.schedule()
    assert [first.rows[0].start, second.rows[0].start] == [15, 16]
    assert len(second.rows[0].block_table) == 2, "grew into its next page"
    assert sequence.in_flight == 2


def test_a_step_copies_no_block_table() -> None:
    plan, allocator = setup()
    sequence = running(plan, allocator, 1)
    (row,) = plan.schedule().rows
    assert row.block_table is sequence.allocation.pages
    before = list(row.block_table)
    plan.schedule()
    assert len(row.block_table) == len(before) + 1
    assert row.block_table[: len(before)] == before, "what a launched step reads stays in place"


def test_sequences_that_a_step_has_no_room_for_sit_out_in_turn() -> None:
    plan, allocator = setup()
    sequences = [running(plan, allocator, i) for i in range(4)]
    taken = [0] * 4
    for _ in range(8):
        step = plan.schedule(lambda wanted: min(wanted, 3))
        assert len(step.rows) == 3
        for sequence in step.sequences:
            taken[sequences.index(sequence)] += 1
        plan.process_results(step, tokens(step))
    assert taken == [6] * 4
    assert len(plan.schedule().rows) == 4, "all have room again"


def test_no_step_is_launched_past_max_tokens() -> None:
    plan, allocator = setup()
    running(plan, allocator, 1, max_tokens=2)  # one of the two is its newest token
    assert plan.schedule() is not None
    assert plan.schedule() is None
    assert not plan.has_work


def test_an_ended_sequence_drains_until_its_last_step_retires() -> None:
    plan, allocator = setup()
    sequence = running(plan, allocator, 1)
    first, second = plan.schedule(), plan.schedule()
    assert len(plan.retire(first, tokens(first))) == 1
    plan.end(sequence)
    assert allocator.free_state_slots == 3, "freed under a launched step"
    assert plan.retire(second, tokens(second)) == [], "a token after the end"
    assert allocator.free_state_slots == 4
    assert not plan.retiring


def test_a_sequence_whose_grammar_is_being_compiled_takes_no_step() -> None:
    plan, allocator = setup()
    held = running(plan, allocator, 1)
    held.compiling = True
    assert not plan.has_work
    assert plan.schedule() is None
    other = running(plan, allocator, 2)
    assert plan.schedule().sequences == (other,)
    assert held.in_flight == 0
    held.compiling = False
    assert plan.schedule().sequences == (held, other)
    assert held.in_flight == 1


def test_the_youngest_is_preempted_also_while_its_grammar_is_being_compiled() -> None:
    plan, allocator = setup(num_pages=2)
    old = running(plan, allocator, 1)
    held = running(plan, allocator, 2)
    held.compiling = True
    plan.schedule()
    assert plan.schedule().sequences == (old,), "it needs a second page"
    assert plan.growth.preempted == [held]
    assert allocator.free_state_slots == 3


def test_the_youngest_gives_way_when_pages_run_out() -> None:
    plan, allocator = setup(num_pages=3)
    old = running(plan, allocator, 1)
    middle = running(plan, allocator, 2)
    young = running(plan, allocator, 3)
    batch = plan.schedule()  # all need only the page they have
    plan.retire(batch, tokens(batch))
    for sequence in (old, middle, young):
        sequence.token_ids.append(1)
    batch = plan.schedule()  # now each needs a second page
    assert plan.growth.preempted == [young, middle]
    assert batch.sequences == (old,)
    assert allocator.check() == ""


def test_a_sequence_that_outgrows_the_pool_is_at_its_end() -> None:
    plan, allocator = setup(num_pages=1)
    alone = running(plan, allocator, 1)
    batch = plan.schedule()
    assert plan.schedule() is None
    assert plan.growth.outgrown == [], "a step is under way"
    plan.process_results(batch, tokens(batch))
    assert plan.schedule() is None
    assert plan.growth.preempted == []
    assert plan.growth.outgrown == [(alone, "17 tokens do not fit into 1 pages of 16")]
    assert (allocator.free_pages, allocator.free_state_slots) == (1, 4)


def test_a_last_token_that_is_under_way_comes_before_the_pool_is_too_small() -> None:
    plan, allocator = setup(num_pages=1)
    running(plan, allocator, 1)
    batch = plan.schedule()
    assert plan.schedule() is None
    (token,), _ = plan.process_results(batch, tokens(batch, token_id=7))
    assert token.finish == "stop"
    assert plan.growth.outgrown == []
    assert allocator.free_pages == 1


def test_what_a_spread_step_leaves_to_the_next_is_pending() -> None:
    plan, allocator = setup()
    sequence = running(plan, allocator, 1)
    first, second, third = plan.schedule(), plan.schedule(), plan.schedule()
    plan.process_results(first, replace(tokens(first), num_stored=0))
    assert (sequence.num_cached, sequence.num_pending) == (15 + 3, 1)
    for launched in (second, third):  # which applied it, and were aborted
        plan.aborted(launched)
    assert (sequence.num_cached, sequence.num_pending) == (15 + 1, 0)
    plan.process_results(batch := plan.schedule(), tokens(batch))
    assert (sequence.num_cached, sequence.num_pending) == (15 + 2, 0)


def test_a_step_that_was_not_launched_leaves_what_is_pending() -> None:
    plan, allocator = setup()
    sequence = running(plan, allocator, 1)
    plan.process_results(batch := plan.schedule(), replace(tokens(batch), num_stored=0))
    plan.take_back(plan.schedule())
    assert (sequence.num_cached, sequence.num_pending) == (15 + 1, 1)


def test_a_step_past_full_pages_that_was_aborted_spoils_what_would_be_kept() -> None:
    for length, kept in ((14, False), (13, True)):
        allocator, found = CacheAllocator(PoolSize(10, 4)), list[Sequence]()
        plan = DecodeScheduler(allocator, LAYOUT, keep=lambda ended, to=found: to.append(ended))
        sequence = running(plan, allocator, 1, length=length)
        first, second = plan.schedule(), plan.schedule()
        drafts = tuple(Sampled(token) for token in (1, 1, 7))
        plan.process_results(first, StepResult((drafts,), num_drafts=(2,)))
        assert sequence.num_cached == length + 3
        plan.aborted(second)
        assert (found == [sequence]) == kept
