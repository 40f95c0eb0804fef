"""Prompts that share beginnings, whatever comes, goes and ends meanwhile: each is computed once and
whole, none is left waiting, and all memory comes back."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from engine.sequence import Sequence
from tests.prefill.prompts import LAYOUT, PAGES_ALONE, TIMEOUT_S, Prompts, draw, prompts_of


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_every_prompt_is_computed_and_all_memory_comes_back(seed: int) -> None:
    rng = random.Random(seed)
    events = Events(rng, enabled=rng.random() < 0.9)
    prompts = events.prompts
    for _ in range(20_000):
        if prompts.num_added == events.most and not prompts.plan.sequences():
            break
        events.next()
    prompts.settle()
    for sequence in list(prompts.offered):
        prompts.release(sequence)
    prompts.check_empty()
    assert len(prompts.done) + len(events.ended) == events.most
    assert len({id(sequence) for sequence in [*prompts.done, *events.ended]}) == events.most


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_what_is_dropped_is_kept_by_no_batch_or_copy_under_way(seed: int) -> None:
    rng = random.Random(seed)
    events = Events(rng)
    prompts = events.prompts
    for _ in range(rng.randint(20, 120)):
        events.next()
    pulls = list(prompts.pulls.copies)
    named = [each for each in pulls if each.sequence.keys is not None]
    coming = [each.sequence.keys.prefix(each.num_tokens) for each in named]
    names = [each.name for each in [*prompts.kept, *prompts.allocator.prefixes.being_made]]
    if not names:
        return
    name = rng.choice([each for each in names if each.key in coming] or names)
    copied = [each for each in pulls if each.sequence.begins_with(name, each.num_tokens)]
    prompts.plan.drop(name)
    prompts.settle()
    assert not [kept for kept in prompts.kept if kept.continues(name)]
    assert all(each.sequence.beginning.num_tokens == 0 for each in copied)
    assert prompts.allocator.check() == prompts.host.check() == ""


class Events:
    """What happens to prompts, at random."""

    def __init__(self, rng: random.Random, *, enabled: bool = True) -> None:
        self.rng = rng
        self.prompts = Prompts(
            rng, num_pages=rng.choice([50, 80, 300]), slots=rng.randint(2, 12),
            tokens=rng.choice([64, 128, 512]), rows=rng.choice([1, 4]), enabled=enabled,
            host_blocks=rng.choice([0, 60, 400]), layout=rng.choice([LAYOUT, PAGES_ALONE]),
        )  # fmt: skip
        self.drawn, self.ended = prompts_of(rng), list[Sequence]()
        self.most = rng.randint(5, 40)

    def next(self) -> None:
        rng, prompts = self.rng, self.prompts
        prompts.now += 0.1
        chance = rng.random()
        if chance < 0.3 and prompts.num_added < self.most:
            tokens = next(self.drawn)
            source = rng.randint(1, len(tokens)) if rng.random() < 0.3 else 0
            prompts.add(tokens, source, whole=rng.random() < 0.1)
        elif chance < 0.33 and prompts.plan.sequences():
            self.ended.append(rng.choice(prompts.plan.sequences()))
            prompts.plan.end(self.ended[-1])
        elif chance < 0.5:
            prompts.end_pull()
        elif chance < 0.65 and prompts.offered:
            leaving = rng.choice(prompts.offered)
            if rng.random() < 0.1:
                prompts.plan.invalidate_prefixes(leaving)
            prompts.release(leaving)
        elif chance < 0.67 and prompts.kept:
            prompts.plan.drop(rng.choice(prompts.kept).name)
        elif chance < 0.8 and prompts.launched:
            prompts.retire()
        else:
            self.ended += prompts.pulled()
            assert prompts.launch() or prompts.num_added < self.most or not stuck(prompts)
        assert prompts.allocator.check() == prompts.host.check() == ""


def stuck(prompts: Prompts) -> bool:
    """Whether prompts wait although nothing is under way that they could wait for."""
    under_way = prompts.launched or prompts.offered or prompts.plan.retiring
    copying = prompts.pulls.copies
    return bool(prompts.plan.sequences()) and not under_way and not copying


@pytest.mark.parametrize("rows", [1, 4])
def test_what_prompts_that_come_together_share_is_computed_once(rows: int) -> None:
    rng = random.Random(1)
    prompts = Prompts(rng, rows=rows)
    system = draw(rng, 960)
    for _ in range(12):
        prompts.add([*system, *draw(rng, 100)])
    prompts.run()
    prompts.check_empty()
    assert [each.beginning.num_tokens for each in prompts.done] == [0, *[960] * 11]


def test_prompts_that_begin_alike_in_several_lengths_do_not_cut_a_prompt_into_small_chunks() -> (
    None
):
    rng = random.Random(2)
    prompts = Prompts(rng, tokens=4_096)
    long = draw(rng, 8_000)
    first = prompts.add(long)
    prompts.launch()
    for length in range(4_200, 7_900, 64):
        prompts.add([*long[:length], *draw(rng, 10)])
    prompts.run()
    prompts.check_empty()
    assert prompts.num_chunks[first.request_id] <= 10


@pytest.mark.parametrize("how", ["ended while it waits", "ended under a batch", "invalidated"])
def test_a_prompt_goes_on_when_the_one_that_it_waits_for_ends(how: str) -> None:
    rng = random.Random(3)
    prompts = Prompts(rng, tokens=128)
    system = draw(rng, 640)
    first = prompts.add([*system, *draw(rng, 20)])
    second = prompts.add([*system, *draw(rng, 20)])
    prompts.launch()
    assert second in prompts.plan.waiting
    if how == "ended while it waits":
        prompts.retire()
    prompts.plan.end(first)
    if how == "invalidated":
        prompts.plan.invalidate_prefixes(first)
    assert prompts.launch()
    assert second in prompts.plan.filling
    prompts.run()
    prompts.check_empty()


def test_a_prompt_that_waits_is_not_overtaken_for_ever() -> None:
    """Each newcomer shares more and more with the oldest one that waits."""
    rng = random.Random(4)
    prompts = Prompts(rng, tokens=64, rows=2, num_pages=600, slots=3)
    oldest = draw(rng, 1_300)
    prompts.add([*oldest[:200], *draw(rng, 300)])
    prompts.launch()
    waiting = prompts.add(oldest)
    for _ in range(100):
        prompts.add([*oldest[: rng.randint(64, 1_200)], *draw(rng, 200)])
        prompts.launch()
        prompts.retire()
        for sequence in list(prompts.offered):
            prompts.release(sequence)
        if waiting in prompts.done:
            return
    raise AssertionError("the oldest prompt has waited for 100 rounds")


def test_a_pull_that_comes_too_late_ends_its_prompt_and_keeps_its_memory_until_it_is_over() -> None:
    prompts = Prompts(random.Random(5))
    late = prompts.add(draw(random.Random(5), 300), source=200)
    assert prompts.launch()
    prompts.now += TIMEOUT_S - 0.1
    assert prompts.pulled() == []
    prompts.now += 0.1
    assert prompts.pulled() == [late]
    assert prompts.pulled() == [], "reported twice"
    assert prompts.allocator.free_state_slots == prompts.size.num_state_slots - 1
    prompts.end_pull()
    assert prompts.pulled() == []
    prompts.check_empty()


def test_a_pull_that_finds_its_prefix_evicted_is_computed_instead() -> None:
    rng = random.Random(6)
    prompts = Prompts(rng)
    prompts.peer.stale = 1.0
    first = prompts.add(draw(rng, 300), source=200)
    prompts.launch()
    prompts.end_pull()
    assert prompts.pulled() == []
    prompts.run()
    assert (first.beginning.num_tokens, first.beginning.reused) == (0, "")
    assert len(prompts.peer.pulls) == 1
    prompts.check_empty()


def first_offered(num_pages: int) -> tuple[Prompts, list[int]]:
    """A prompt of 20 pages that is done, and holds them; 16 of them belong to a kept prefix too."""
    prompts = Prompts(random.Random(1), num_pages=num_pages)
    tokens = draw(prompts.rng, 20 * LAYOUT.page_size)
    prompts.add(tokens)
    while prompts.launch():
        prompts.retire()
    assert len(prompts.offered) == 1
    assert prompts.allocator.kept.longest(prompts.done[0].keys, len(tokens)).num_tokens == 256
    return prompts, tokens


def test_pages_that_a_prompt_shares_are_not_counted_against_it() -> None:
    prompts, tokens = first_offered(num_pages=20 + 14)
    sequence = prompts.add([*tokens, *draw(prompts.rng, 10 * LAYOUT.page_size)])
    assert prompts.launch(), "30 pages, of which 14 are new"
    assert sequence.beginning.num_tokens == 256
    assert prompts.allocator.free_pages == 0
    prompts.run()
    prompts.check_empty()


def test_a_prompt_waits_for_the_pages_that_it_does_not_share() -> None:
    prompts, tokens = first_offered(num_pages=20 + 13)
    prompts.add([*tokens, *draw(prompts.rng, 10 * LAYOUT.page_size)])
    assert not prompts.launch()
    prompts.release(prompts.offered[0])
    assert prompts.launch()


def test_a_copy_that_shares_no_pages_is_not_started_where_only_shared_ones_have_room() -> None:
    prompts, tokens = first_offered(num_pages=20 + 14)
    longer = [*tokens, *draw(prompts.rng, 10 * LAYOUT.page_size)]
    sequence = prompts.add(longer, len(tokens) + 64)
    assert sequence.source is not None
    sequence.source = replace(sequence.source, digest="verified")
    assert prompts.launch()
    assert (sequence.beginning.num_tokens, sequence.beginning.reused) == (256, "gpu")
    assert not prompts.peer.pulls


def test_a_prompt_is_computed_behind_what_came_from_a_peer() -> None:
    rng = random.Random(7)
    prompts = Prompts(rng)
    prompts.peer.stale = 0.0
    first = prompts.add(draw(rng, 300), source=205)
    prompts.launch()
    prompts.end_pull()
    prompts.pulled()
    prompts.run()
    assert (first.beginning.num_tokens, first.beginning.reused) == (205, "peer")
    prompts.check_empty()


def test_pages_alone_are_a_hit_at_any_page_boundary() -> None:
    rng = random.Random(3)
    prompts = Prompts(rng, slots=2, layout=PAGES_ALONE)
    long = draw(rng, 1_000)
    for length in (1_000, 999, 500, 333, 40, 17, 16):
        prompts.add([*long[:length], *draw(rng, 9)])
        prompts.run()
    hits = [each.beginning.num_tokens for each in prompts.done]
    assert hits == [0, 992, 496, 320, 32, 16, 16]
    assert prompts.allocator.free_state_slots == 2, "a kept prefix takes no state slot"
    prompts.check_empty()


def test_an_evicted_prefix_is_found_at_any_page_boundary_in_host_memory() -> None:
    rng = random.Random(4)
    prompts = Prompts(rng, num_pages=30, slots=2, layout=PAGES_ALONE, host_blocks=200)
    long = draw(rng, 400)
    for tokens in (long, draw(rng, 400), draw(rng, 400)):
        prompts.add(tokens)
        prompts.run()
        prompts.host.poll()
        prompts.settle()
    prompts.add([*long[:300], *draw(rng, 9)])
    while prompts.plan.sequences():
        prompts.launch()
        prompts.settle()
    assert prompts.done[-1].beginning.reused == "host"
    assert prompts.done[-1].beginning.num_tokens == 288
