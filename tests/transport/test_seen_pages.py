"""Where prompts part is known, as far as the earlier ones are remembered."""

from hypothesis import given
from hypothesis import strategies as st

from tests.coordinator.kept import PAGE, keys_of
from transport.wire.prefix import PrefixKeys
from transport.wire.seen_pages import SeenPages

PROMPTS = st.lists(st.lists(st.integers(0, 1), max_size=5), max_size=10)


def prompt(pages: list[int]) -> PrefixKeys:
    return keys_of([page for page in pages for _ in range(PAGE)] + [5])


@given(PROMPTS)
def test_a_prompt_shares_the_pages_that_an_earlier_one_began_with(prompts) -> None:
    seen = SeenPages(1_000)
    for number, pages in enumerate(prompts):
        common = [
            n
            for earlier in prompts[:number]
            for n in range(min(len(earlier), len(pages)) + 1)
            if earlier[:n] == pages[:n]
        ]
        assert seen.note(prompt(pages)) == max(common, default=0)


@given(PROMPTS, st.integers(1, 6))
def test_of_the_newest_prompts_the_beginnings_are_remembered(prompts, max_seen) -> None:
    seen = SeenPages(max_seen)
    for pages in prompts:
        seen.note(prompt(pages))
        assert len(seen) <= max_seen
        assert seen.note(prompt(pages)) == min(len(pages), max_seen)


def test_of_a_prompt_that_is_forgotten_in_part_a_prefix_is_remembered() -> None:
    seen = SeenPages(3)
    seen.note(prompt([1, 1]))
    seen.note(prompt([2, 2]))
    assert seen.note(prompt([1, 1])) == 1


def test_where_prompts_part_that_share_more_than_is_looked_at_is_not_known() -> None:
    seen = SeenPages(1_000, max_pages=5)
    for num_pages, shared in ((5, 0), (5, 5), (6, 0)):
        assert seen.note(prompt([0] * num_pages)) == shared


def test_a_state_was_kept_behind_pages_that_are_remembered() -> None:
    seen = SeenPages(2)
    first, other = prompt([1, 1]).pages_up_to(2), prompt([2, 2])
    seen.note(prompt([1, 1]))
    seen.note_kept(first[1])
    seen.note(prompt([1, 1]))
    assert [seen.was_kept(key) for key in first] == [False, True, False]
    seen.note(other)
    seen.note_kept(first[1])
    assert not seen.was_kept(first[1]), "forgotten"
