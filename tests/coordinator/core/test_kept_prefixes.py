"""The coordinator knows of every prefix that a live worker keeps, and of no other."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from coordinator.core.workers.kept_prefixes import MAX_PENDING_PAGES, KeptPrefixes, PendingPrefixes
from tests.coordinator.kept import PAGE, kept, keys_of
from transport.wire.offers import KeptPrefix, PrefixesChanged

# Prompts of few different pages, so that they share beginnings; some end within a page.
IDS = st.tuples(st.lists(st.integers(0, 1), max_size=4), st.sampled_from([0, 0, 1, 5, 15])).map(
    lambda drawn: [page for page in drawn[0] for _ in range(PAGE)] + [7] * drawn[1]
)
WORKERS = st.sampled_from(["a", "b", "c"])
CHANGES = st.lists(
    st.tuples(
        WORKERS,
        st.none() | st.tuples(st.lists(IDS.filter(bool), max_size=4), st.lists(IDS, max_size=3)),
    ),
    max_size=12,
)


@given(CHANGES, IDS, st.integers(0, 80))
def test_a_prompt_finds_all_that_is_kept_of_it_longest_first(changes, prompt, max_tokens) -> None:
    index, model = KeptPrefixes(PAGE), dict[str, dict[tuple[int, ...], KeptPrefix]]()
    waiting = keys_of(prompt)  # it is looked up again and again
    for instance, change in changes:
        index.of(waiting, max_tokens)
        here = model.setdefault(instance, {})
        if change is None:
            index.forget(instance)
            here.clear()
            continue
        added, removed = change
        for ids in removed:
            here.pop(tuple(ids), None)
        here |= {tuple(ids): kept(ids, instance) for ids in added}
        index.change(
            instance,
            PrefixesChanged(
                tuple(kept(ids, instance) for ids in added),
                tuple(keys_of(ids).prefix(len(ids)) for ids in removed),
            ),
        )
    assert len(index) == sum(len(here) for here in model.values())
    expected = [
        (instance, prefix)
        for instance, here in model.items()
        for ids, prefix in here.items()
        if len(ids) <= max_tokens and tuple(prompt[: len(ids)]) == ids
    ]
    found = index.of(waiting, max_tokens)
    assert found == index.of(keys_of(prompt), max_tokens)
    assert sorted(found, key=_order) == sorted(expected, key=_order)
    lengths = [prefix.num_tokens for _, prefix in found]
    assert lengths == sorted(lengths, reverse=True)


@given(CHANGES, IDS, st.integers(0, 80))
def test_without_states_a_prompt_finds_the_most_pages_of_each_worker(
    changes, prompt, max_tokens
) -> None:
    index, model = KeptPrefixes(PAGE), dict[str, set[tuple[int, ...]]]()
    for instance, change in changes:
        here = model.setdefault(instance, set())
        if change is None:
            index.forget(instance)
            here.clear()
            continue
        added, removed = change
        here -= set(map(tuple, removed))
        here |= set(map(tuple, added))
        prefixes = tuple(kept(ids, instance, has_states=False) for ids in added)
        keys = tuple(keys_of(ids).prefix(len(ids)) for ids in removed)
        index.change(instance, PrefixesChanged(prefixes, keys))
    found = index.of(keys_of(prompt), max_tokens)
    lengths = [prefix.num_tokens for _, prefix in found]
    assert lengths == sorted(lengths, reverse=True)
    for instance, here in model.items():
        most = max((_common(prompt, ids, max_tokens) for ids in here), default=0)
        first = next((prefix for at, prefix in found if at == instance), None)
        assert (first.num_tokens if first is not None else 0) == most
        if first is not None:
            expected = kept(prompt[:most], instance, has_states=False)
            assert first == expected, "named and offered as a prefix of its own would be"
    for instance in model:
        index.forget(instance)
    assert not index._pages


def _common(prompt: list[int], ids: tuple[int, ...], max_tokens: int) -> int:
    """How many tokens of a prompt a worker that keeps ``ids`` has."""
    if len(ids) <= max_tokens and tuple(prompt[: len(ids)]) == ids:
        return len(ids)
    same = min(len(ids), len(prompt), max_tokens)
    while tuple(prompt[:same]) != ids[:same]:
        same -= 1
    return same // PAGE * PAGE


def test_keys_of_pages_that_are_no_chain_are_not_believed() -> None:
    index, right = KeptPrefixes(PAGE), kept([1] * 48, has_states=False)
    other = kept([2] * 16, has_states=False)
    a, b, c = right.page_keys
    index.change("w", PrefixesChanged((kept([1] * 32, has_states=False),)))
    for wrong in ((a, c), (b, a, c), (a, a, c), (c,), (*other.page_keys, b, c)):
        index.change("w", PrefixesChanged((replace(right, key=b"k" * 16, page_keys=wrong),)))
        index.change("w", PrefixesChanged((right, other)))
        index.change("w", PrefixesChanged((replace(right, key=b"k" * 16, page_keys=wrong),)))
        for length in (17, 33, 49):
            found = index.of(keys_of([1] * length), length - 1)
            assert all(prefix.num_tokens < length for _, prefix in found)
        index.forget("w")
        assert len(index) == 0


def test_a_part_of_a_prefix_with_a_digest_is_not_offered() -> None:
    index, whole = KeptPrefixes(PAGE), kept([1] * 40, has_states=False)
    assert whole.offer is not None
    checked = replace(whole, offer=replace(whole.offer, digest="d"))
    index.change("w", PrefixesChanged((checked,)))
    ((_, part),) = index.of(keys_of([1] * 20), 19)
    assert (part.num_tokens, part.offer) == (16, None)


def _order(found: tuple[str, KeptPrefix]) -> tuple[int, str]:
    return found[1].num_tokens, found[0]


def test_what_moves_to_the_host_and_back_is_known_once_as_it_is_now() -> None:
    index, ids = KeptPrefixes(PAGE), [1] * 20
    there, back = kept(ids, on_host=True), kept(ids)
    for now in (back, there, back):
        index.change("w", PrefixesChanged((now,), (now.key,)))
        assert index.of(keys_of([1] * 40), 39) == [("w", now)]
    assert len(index) == 1


def test_of_two_workers_that_contradict_each_other_the_second_is_not_believed() -> None:
    index, right = KeptPrefixes(PAGE), kept([1] * 20, "a")
    wrong = KeptPrefix(right.key, kept([2] * 16).key, 17, None)
    index.change("a", PrefixesChanged((right,)))
    index.change("b", PrefixesChanged((wrong,)))
    assert index.of(keys_of([1] * 40), 39) == [("a", right)]
    index.forget("b")
    index.forget("a")
    assert index.of(keys_of([1] * 40), 39) == []
    index.change("b", PrefixesChanged((wrong,)))
    index.forget("b")
    assert len(index) == 0


@given(st.lists(st.tuples(st.integers(0, 4), st.none() | IDS, st.integers(0, 3)), max_size=12), IDS)
def test_a_prompt_shares_pages_with_those_that_are_being_computed(changes, prompt) -> None:
    coming, model = PendingPrefixes(), dict[int, tuple[list[int], int]]()
    for request, ids, num_reused in changes:
        coming.remove(str(request))
        model.pop(request, None)
        if ids is not None:
            coming.add(str(request), keys_of(ids), num_reused)
            model[request] = ids, num_reused
    whole = [n for n in range(len(prompt) // PAGE + 1) for ids, num_reused in model.values()
             if num_reused < n <= len(ids) // PAGE and ids[: n * PAGE] == prompt[: n * PAGE]
             ]  # fmt: skip
    assert coming.num_pages(keys_of(prompt), len(prompt) // PAGE) == max(whole, default=0)
    assert coming.requests == {str(request) for request in model}
    for request in list(model):
        coming.remove(str(request))
    assert not coming._pages


def test_of_a_long_prompt_the_first_pages_are_known() -> None:
    coming, ids = PendingPrefixes(), [1] * PAGE * (MAX_PENDING_PAGES + 9)
    coming.add("r", keys_of(ids), 0)
    assert coming.num_pages(keys_of(ids), MAX_PENDING_PAGES + 9) == MAX_PENDING_PAGES
