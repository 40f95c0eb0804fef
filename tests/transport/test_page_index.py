"""An index of pages finds a prefix by any of its pages."""

from hypothesis import given
from hypothesis import strategies as st

from tests.coordinator.kept import PAGE, keys_of
from transport.wire.page_index import PageIndex

PAGES = st.lists(st.integers(0, 1), max_size=5).map(tuple)


def page_keys(pages: tuple[int, ...]) -> tuple[bytes, ...]:
    ids = [page for page in pages for _ in range(PAGE)]
    return tuple(keys_of(ids).pages_up_to(len(pages))[1:])


@given(st.lists(st.tuples(st.booleans(), PAGES), max_size=20), PAGES, st.integers(0, 90))
def test_the_most_pages_of_a_prompt_are_found(changes, prompt, max_tokens) -> None:
    index, model = PageIndex[int](PAGE), dict[int, tuple[int, ...]]()
    for number, (adds, pages) in enumerate(changes):
        if adds:
            assert index.fits(page_keys(pages))
            index.add(number, page_keys(pages))
            model[number] = pages
        elif model:
            oldest = next(iter(model))
            index.remove(oldest, page_keys(model.pop(oldest)))
    prompt = prompt[: max_tokens // PAGE]
    most = max((common(prompt, pages) for pages in model.values()), default=0)
    ids = [page for page in prompt for _ in range(PAGE)]
    found = index.longest(keys_of(ids), max_tokens)
    if most:
        assert found is not None
        assert found[1] == most
        assert model[found[0]][:most] == prompt[:most]
    else:
        assert found is None
    every = {pages[:n] for pages in model.values() for n in range(1, len(pages) + 1)}
    assert len(index) == len(every)


def common(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    return max(n for n in range(min(len(a), len(b)) + 1) if a[:n] == b[:n])


def test_keys_that_are_no_chain_do_not_fit() -> None:
    index = PageIndex[str](PAGE)
    a, b, c = page_keys((0, 1, 1))
    index.add("x", (a, b))
    assert index.fits((a, b, c))
    for wrong in ((b,), (a, c, b), (c, a), (c, c), (a, a)):
        assert not index.fits(wrong), wrong
