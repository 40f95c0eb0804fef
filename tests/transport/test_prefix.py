"""The keys of prefixes: equal for equal beginnings, and for nothing else."""

from hypothesis import given
from hypothesis import strategies as st

from transport.wire.prefix import KEY_BYTES, KnownPrefixes, PrefixKeys
from transport.wire.token_ids import packed

PAGE = 4
IDS = st.lists(st.integers(0, 3), max_size=14)


def keys(ids: list[int], model: str = "m", salt: str = "") -> PrefixKeys:
    return PrefixKeys(model, salt, packed(ids), PAGE)


@given(IDS, IDS)
def test_two_prefixes_have_the_same_key_only_with_the_same_ids(a: list[int], b: list[int]) -> None:
    for i in range(len(a) + 1):
        for j in range(len(b) + 1):
            same = keys(a).prefix(i) == keys(b).prefix(j)
            assert same == (a[:i] == b[:j])


@given(IDS)
def test_whole_pages_are_a_prefix(ids: list[int]) -> None:
    found = keys(ids)
    assert found.num_pages == len(ids) // PAGE
    for n in range(found.num_pages + 1):
        assert found.pages(n) == keys(ids[: n * PAGE]).prefix(n * PAGE)
        assert len(found.pages(n)) == KEY_BYTES


@given(IDS, IDS, st.data())
def test_the_keys_of_a_longer_sequence_go_on_from_those_that_are_known(
    ids: list[int], more: list[int], data: st.DataObject
) -> None:
    known, whole = keys(ids), ids + more
    known.pages(data.draw(st.integers(0, known.num_pages)))
    found, expected = known.followed(packed(whole)), keys(whole)
    assert found.num_tokens == len(whole)
    for n in range(len(whole) + 1):
        assert found.prefix(n) == expected.prefix(n)
    assert known.num_tokens == len(ids)
    assert known.pages_up_to(known.num_pages) == keys(ids).pages_up_to(known.num_pages)


def test_model_and_salt_keep_prefixes_apart() -> None:
    found = {
        keys([1, 2, 3, 4], model, salt).prefix(n)
        for model in ("m", "n")
        for salt in ("", "a", "b")
        for n in (0, 3, 4)
    }
    assert len(found) == 18


@given(st.lists(IDS.filter(bool), max_size=8), IDS, st.integers(0, 14), st.data())
def test_the_longest_known_prefix(
    known: list[list[int]], prompt: list[int], limit: int, data: st.DataObject
) -> None:
    found = KnownPrefixes(PAGE)
    removed = data.draw(st.lists(st.sampled_from(known))) if known else []
    for ids in known:
        found.add(keys(ids).prefix(len(ids)), keys(ids).pages(len(ids) // PAGE), len(ids))
    for ids in removed:
        found.remove(keys(ids).prefix(len(ids)), keys(ids).pages(len(ids) // PAGE))
    lengths = [
        len(ids)
        for ids in known
        if ids not in removed and len(ids) <= limit and prompt[: len(ids)] == ids
    ]
    longest = found.longest(keys(prompt), limit)
    assert (longest and longest[1]) == max(lengths, default=None)
    assert longest is None or longest[0] in found
