"""A worker is told that a prefix which it keeps gives NaN."""

import pytest

from engine.cache.kept import KeptPrefix
from tests.simulation.fake_engine import expected_output
from tests.worker.test_host_prefixes import BEGIN, STOP, Site
from tests.worker.test_published_prefixes import a_worker, told
from transport.wire.messages import DropPrefix, Generate
from transport.wire.offers import PrefixName
from transport.wire.sampling import SamplingParams, StopRule
from transport.wire.token_ids import packed, to_wire
from worker.worker import Worker


def answer(worker: Worker, name: str, ids: list[int]) -> None:
    """Compute a prompt and its answer, and keep both."""
    order = to_wire(packed(ids))
    worker.handle(Generate(name, 1, 1, order, len(ids), SamplingParams(), StopRule(4)))
    while not worker.empty:
        worker.step()


def name_of(kept: KeptPrefix) -> PrefixName:
    return PrefixName(kept.key, kept.pages_key, kept.num_tokens)


@pytest.mark.parametrize("on_host", [False, True])
def test_it_drops_the_prefix_and_those_that_came_from_it(on_host: bool) -> None:
    sent: list = []
    worker = a_worker(sent, num_blocks=200 if on_host else 0)
    host, kept = worker._room.prefixes.host, worker._room.allocator.kept
    first, other = [n % 60 for n in range(150)], [n % 50 for n in range(150)]
    answer(worker, "first", first)
    short = min(kept, key=lambda each: each.num_tokens)
    answer(worker, "next", [*first, *range(70)])
    answer(worker, "other", other)
    before = told(worker, sent).added
    by_length = {each.num_tokens: each for each in kept if short.pages_key in each.page_keys}
    middle = by_length[sorted(by_length)[1]]
    if on_host:
        host.ahead = worker._room.allocator.size
        while len(kept):
            worker.step()
            host._copier.end_all()
        told(worker, sent)
    worker.handle(DropPrefix(name_of(middle)))
    gone = {each.key for n, each in by_length.items() if n >= middle.num_tokens}
    assert len(gone) >= 2
    assert set(told(worker, sent).removed) == gone
    left = {each.key for each in before} - gone
    assert {each.key for each in (host if on_host else kept)} == left
    assert short.key in left
    assert worker.gauges().accounting_error == ""


@pytest.mark.parametrize("which", [0, 1])
def test_a_copy_from_host_memory_that_is_under_way_is_not_used(which: int) -> None:
    """It is dropped itself, or the shorter one that it goes on from."""
    site = Site()
    site.keep_only_on_the_host(BEGIN[:150])
    site.keep_only_on_the_host(BEGIN)
    host = site.worker._room.prefixes.host
    prompt = (*BEGIN[:195], 1)
    kept = sorted(host, key=lambda each: each.num_tokens)[which]
    site.submit("r", prompt)
    site.run(copying=False)
    assert site.copier.under_way
    site.worker.handle(DropPrefix(name_of(kept)))
    assert not any(each.continues(name_of(kept)) for each in host)
    site.run()
    assert site.reused["r"][1] < kept.num_tokens
    assert site.text("r") == expected_output(prompt, STOP)
    assert site.worker.gauges().accounting_error == ""


def test_a_prefix_on_its_way_to_host_memory_is_not_kept_there() -> None:
    site = Site()
    host = site.worker._room.prefixes.host
    site.submit("first", BEGIN)
    site.run()
    kept = max(site.worker._room.allocator.kept, key=lambda each: each.num_tokens)
    host.ahead = site.worker._room.allocator.size
    site.run(copying=False)
    assert kept.leaving
    site.worker.handle(DropPrefix(name_of(kept)))
    site.run()
    assert kept.key not in {each.key for each in host}
    assert host.check() == ""


def test_what_it_keeps_no_more_is_nothing_to_drop() -> None:
    sent: list = []
    worker = a_worker(sent)
    answer(worker, "first", [n % 60 for n in range(150)])
    told(worker, sent)
    num_kept = worker.gauges().prefix.num_kept
    worker.handle(DropPrefix(PrefixName(bytes(16), bytes(16), 64)))
    sent.clear()
    worker.publish_prefixes()
    assert sent == []
    assert worker.gauges().prefix.num_kept == num_kept
