"""Settings of drafts, and that pages and max_tokens bound them."""

import pytest

from decode.scheduler import DecodeScheduler
from decode.speculation import FixedDrafts, NoDrafts, draft_policy, max_drafts
from engine.batch import Sampled, StepResult
from engine.cache.allocator import CacheAllocator
from tests.decode.test_scheduler import LAYOUT, running
from transport.wire.layout import PoolSize
from transport.wire.reports import DraftCounts
from transport.wire.sampling import Constraint, SamplingParams


@pytest.mark.parametrize("setting", ["", "yes", "0", "5", "-1", "1.5"])
def test_a_bad_setting_is_named(setting: str) -> None:
    with pytest.raises(ValueError, match="speculate"):
        max_drafts(setting, "cpu")


def test_settings() -> None:
    assert [max_drafts(s, "cuda") for s in ("auto", "off", "1", "4")] == [3, 0, 1, 4]
    assert max_drafts("auto", "cpu") == 4
    assert isinstance(draft_policy("auto", 0, "cpu"), NoDrafts)
    assert draft_policy("2", 2, "cpu") == FixedDrafts(2)


def scheduler(num_pages: int) -> tuple[DecodeScheduler, CacheAllocator]:
    allocator = CacheAllocator(PoolSize(num_pages, 4))
    return DecodeScheduler(allocator, LAYOUT, drafts=FixedDrafts(4)), allocator


def step(plan: DecodeScheduler, *tokens: int) -> list[int]:
    """Run one step that gives every row these tokens -> the ids sent."""
    scheduled = plan.schedule()
    assert scheduled is not None
    each = tuple(Sampled(token) for token in tokens)
    result = StepResult((each,) * len(scheduled.rows), (len(each) - 1,) * len(scheduled.rows))
    sent, broken = plan.process_results(scheduled, result)
    assert not broken
    return [token.token_id for token in sent]


def test_accepted_drafts_advance_a_sequence() -> None:
    plan, allocator = scheduler(10)
    sequence = running(plan, allocator, 1, length=16)
    assert plan.schedule().rows[0].num_drafts == 0, "nothing was drafted yet"
    sequence.in_flight -= 1
    sequence.num_cached -= 1
    assert step(plan, 1, 2, 3) == [1, 2, 3]
    assert sequence.num_cached == sequence.num_tokens - 1 == 18
    assert sequence.drafts_in_flight == 0


def test_tokens_behind_a_stop_are_dropped() -> None:
    plan, allocator = scheduler(10)
    running(plan, allocator, 1)
    assert step(plan, 1, 7, 3) == [1, 7]
    assert not plan.running
    assert allocator.check() == ""


def test_drafts_are_counted_by_position_and_sent_with_the_first_token_of_their_step() -> None:
    plan, allocator = scheduler(10)
    running(plan, allocator, 1, length=16)
    step(plan, 1)
    scheduled = plan.schedule()
    assert scheduled is not None
    result = StepResult((tuple(map(Sampled, (2, 3, 4))),), num_drafts=(4,))
    sent, _ = plan.process_results(scheduled, result)
    assert [token.drafts for token in sent] == [(4, 2), (0, 0), (0, 0)]
    assert plan.draft_counts == DraftCounts(2, (1, 1, 1, 1), (1, 1, 0, 0), num_drafts=4)


def test_drafts_end_with_max_tokens_and_take_no_page_of_another() -> None:
    plan, allocator = scheduler(3)
    running(plan, allocator, 1, length=30, max_tokens=4)
    step(plan, 1)
    assert plan.schedule().rows[0].num_drafts == 1, "two tokens are left: one certain, one draft"
    plan, allocator = scheduler(2)
    running(plan, allocator, 1, length=28)
    step(plan, 1)
    first = plan.schedule().rows[0]
    assert first.num_drafts == 3, "of 32 tokens in its pages it has 28, and one is certain"


def test_a_step_ahead_counts_the_drafts_of_the_one_before() -> None:
    plan, allocator = scheduler(10)
    sequence = running(plan, allocator, 1, length=16)
    plan.schedule()
    second, third = plan.schedule(), plan.schedule()
    assert second.rows[0].num_drafts == third.rows[0].num_drafts == 4
    assert sequence.drafts_in_flight == 8
    held = len(sequence.allocation.pages) * LAYOUT.page_size
    assert held >= third.rows[0].start + 1 + 8


def test_a_step_ahead_takes_no_page_for_drafts_behind_the_last_token() -> None:
    plan, allocator = scheduler(10)
    sequence = running(plan, allocator, 1, length=28, max_tokens=5)  # 32 tokens in all: two pages
    while plan.schedule() is not None:
        assert len(sequence.allocation.pages) <= 2, "a block table has no room for a third"
    assert sequence.in_flight == 4


def test_drafts_go_on_after_a_step_without_any() -> None:
    class ForOne(FixedDrafts):
        def num_next(self, num_sequences: int) -> int:
            return 0 if num_sequences > 1 else self.num

    allocator = CacheAllocator(PoolSize(10, 4))
    plan = DecodeScheduler(allocator, LAYOUT, drafts=ForOne(2))
    old, young = running(plan, allocator, 1), running(plan, allocator, 2)
    assert plan.schedule().num_next_drafts == 0
    plan.end(young)
    assert plan.schedule().num_next_drafts == 2
    assert plan.schedule().rows[0].num_drafts == 2
    assert old.in_flight == 3


def test_sequences_with_penalties_or_a_grammar_have_drafts_too() -> None:
    plan, allocator = scheduler(10)
    sequence = running(plan, allocator, 1)
    sequence.sampling = SamplingParams(presence_penalty=0.5, constraint=Constraint("{}"))
    step(plan, 1)
    assert plan.schedule().rows[0].num_drafts == 4
