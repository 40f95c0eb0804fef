"""Where prompts part is known, whichever worker computed them."""

from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.seen_pages import MAX_PAGES, SeenPages
from tests.coordinator.desk import Desk
from tests.coordinator.kept import PAGE, keys_of
from transport.wire.messages import Generate
from transport.wire.offers import PrefixesChanged

PROMPTS = st.lists(st.lists(st.integers(0, 1), max_size=5), max_size=10)


def tokens(pages: list[int]) -> list[int]:
    return [page for page in pages for _ in range(PAGE)] + [5]


@given(PROMPTS)
def test_a_prompt_shares_the_pages_that_an_earlier_one_began_with(prompts) -> None:
    seen = SeenPages()
    for number, pages in enumerate(prompts):
        common = [
            n
            for earlier in prompts[:number]
            for n in range(min(len(earlier), len(pages)) + 1)
            if earlier[:n] == pages[:n]
        ]
        assert seen.note(keys_of(tokens(pages))) == max(common, default=0)


@given(PROMPTS, st.integers(1, 6))
def test_of_the_newest_prompts_the_beginnings_are_remembered(prompts, max_seen) -> None:
    seen = SeenPages(max_seen)
    for pages in prompts:
        seen.note(keys_of(tokens(pages)))
        assert len(seen) <= max_seen
        assert seen.note(keys_of(tokens(pages))) == min(len(pages), max_seen)


def test_where_prompts_part_that_share_more_than_is_looked_at_is_not_known() -> None:
    seen = SeenPages()
    for num_pages, shared in ((MAX_PAGES, 0), (MAX_PAGES, MAX_PAGES), (MAX_PAGES + 1, 0)):
        assert seen.note(keys_of(tokens([0] * num_pages)[:-1])) == shared


def test_the_second_prompt_that_begins_so_is_told_to_keep_a_state_where_it_goes_on_otherwise() -> (
    None
):
    desk = Desk(("b-1", "b-2"))
    for instance in ("b-1", "b-2"):
        desk.life.prefixes_changed(instance, PrefixesChanged())
    desk.sent()
    for name, length in (("first", 100), ("second", 70), ("third", 100)):
        desk.submit(name, length)
    orders = {m.request_id: (at, m) for at, m in desk.sent() if isinstance(m, Generate)}
    assert {at for at, _ in orders.values()} == {"b-1", "b-2"}
    boundaries = [orders[name][1].boundaries for name in ("first", "second", "third")]
    assert boundaries == [(), (64,), (96,)]
