"""Where states are kept, and what is remembered of earlier prompts."""

from array import array
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from engine.cache.prefix_policy import (
    COARSE_TOKENS,
    MIN_SAVED_TOKENS,
    QUESTION_TOKENS,
    kind_of,
    last_page,
    miss,
    places,
)
from transport.wire.prefix import PrefixKeys
from transport.wire.seen_pages import SeenPages

PAGE = 4


def keys(*ids: int) -> PrefixKeys:
    return PrefixKeys("model", "", array("i", ids), PAGE)


def test_a_short_prompt_keeps_the_state_behind_its_last_whole_page() -> None:
    assert places(700, start=0, page_size=64) == (640,)


def test_a_prompt_of_whole_pages_leaves_a_token_to_compute() -> None:
    assert places(640, start=0, page_size=64) == (576,)


def test_a_second_state_is_kept_before_a_question() -> None:
    assert places(3_000, start=0, page_size=64) == (1_920, 2_944)


def test_long_prompts_that_begin_alike_keep_states_at_the_same_places() -> None:
    assert places(10_000, start=0, page_size=64) == (8_704, 9_728)
    assert places(10_200, start=0, page_size=64) == (8_704, 9_728)


def test_boundaries_and_branch_are_rounded_down_to_where_a_chunk_may_end() -> None:
    found = places(10_000, start=10, boundaries=(2_000,), branch=6_400, page_size=64)
    assert found == (1_994, 6_346, 8_650, 9_674)


def test_of_places_that_are_near_each_other_the_first_is_taken() -> None:
    assert places(3_000, start=0, boundaries=(2_900, 2_999), page_size=64) == (1_920, 2_880)


def test_a_prompt_that_adds_little_to_what_it_reuses_keeps_nothing() -> None:
    assert places(1_200, start=1_024, page_size=64) == ()


def test_without_states_the_last_whole_page_is_kept() -> None:
    assert last_page(100, start=0, page_size=16) == (96,)
    assert last_page(96, start=0, page_size=16) == (80,)
    assert last_page(3_001, start=10, page_size=16) == (2_992,)
    assert last_page(105, start=96, page_size=16) == ()


def test_each_place_has_a_kind() -> None:
    boundaries, branch = (4_000, 9_000), 2_000
    found = places(12_000, start=10, boundaries=boundaries, branch=branch, page_size=64)
    kinds = [kind_of(place, 12_000, boundaries, branch) for place in found]
    assert kinds == ["branch", "boundary", "boundary", "question", "end"]


@given(
    num_tokens=st.integers(1, 20_000),
    start=st.integers(0, 20_000),
    boundaries=st.lists(st.integers(0, 25_000), max_size=5),
    branch=st.integers(0, 300),
)
def test_whatever_a_later_prompt_shares_a_state_is_kept_not_far_before(
    num_tokens: int, start: int, boundaries: list[int], branch: int
) -> None:
    start %= num_tokens
    found = places(num_tokens, start=start, boundaries=boundaries, branch=branch * 64, page_size=64)
    assert all((place - start) % 64 == 0 and start < place < num_tokens for place in found)
    starts = [start, *found]
    assert all(b - a >= MIN_SAVED_TOKENS for a, b in pairwise(starts))
    guessed = num_tokens - QUESTION_TOKENS - 1
    for shared in (branch * 64, *boundaries, guessed):
        far = MIN_SAVED_TOKENS + 64 + (COARSE_TOKENS if shared == guessed else 0)
        if start <= shared < num_tokens - 64:
            assert any(0 <= shared - place < far for place in starts)


def test_why_a_prompt_reuses_no_more() -> None:
    seen = SeenPages(100)
    first, second = keys(*range(16)), keys(*range(12), *range(50, 60))
    assert miss(seen, first, 0, seen.note(first)) == "new"
    assert miss(seen, second, 0, seen.note(second)) == "no_state"
    seen.note_kept(first.pages(2))
    third = keys(*range(12), *range(70, 80))
    num_seen = seen.note(third)
    assert miss(seen, third, 0, num_seen) == "evicted"
    assert miss(seen, third, 2, num_seen) == "no_state"
    assert miss(seen, third, 3, num_seen) == "new"
