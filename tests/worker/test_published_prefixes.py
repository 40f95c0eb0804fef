"""What a worker tells the coordinator of the prefixes that it keeps."""

from types import SimpleNamespace

from tests.engine.late_host_copies import LateHostCopier
from tests.simulation.fake_engine import LAYOUT, PAGES_ALONE, FakeEngine
from tests.worker.made import make_worker
from transport.wire.layout import CacheLayout, PoolSize
from transport.wire.messages import Generate, Tokens
from transport.wire.offers import PrefixesChanged
from transport.wire.sampling import SamplingParams, StopRule
from transport.wire.session import LOST
from transport.wire.token_ids import packed, to_wire
from worker.settings import PrefixCacheSettings
from worker.worker import Worker


def a_worker(
    sent: list, *, enabled: bool = True, num_blocks: int = 0, layout: CacheLayout = LAYOUT
) -> Worker:
    engine = FakeEngine(PoolSize(40, 8), layout=layout)
    return make_worker(
        engine,
        SimpleNamespace(send=sent.append),
        "colocated",
        instance="c-1",
        prefix_cache=PrefixCacheSettings(enabled=enabled, min_saved_tokens=64),
        host=LateHostCopier(engine.cache, 1, num_blocks) if num_blocks else None,
        clock=lambda: 0.0,
    )


def run_prompt(worker: Worker, sent: list) -> None:
    prompt = to_wire(packed(n % 60 for n in range(150)))
    worker.handle(Generate("r", 1, 1, prompt, 150, SamplingParams(), StopRule(4)))
    while not any(t.finish for m in sent if isinstance(m, Tokens) for t in m.tokens):
        worker.step()
    worker.step()


def told(worker: Worker, sent: list) -> PrefixesChanged:
    """What it has to say, and says now."""
    sent.clear()
    worker.publish_prefixes()
    (message,) = sent
    return message


def test_it_says_once_that_it_keeps_prefixes_also_before_there_is_one() -> None:
    sent: list = []
    worker = a_worker(sent)
    worker.publish_prefixes()
    worker.publish_prefixes()
    assert sent == [PrefixesChanged()]
    worker.handle(LOST)
    worker.publish_prefixes()
    assert sent == [PrefixesChanged()] * 2, "to the next coordinator"
    worker = a_worker(sent, enabled=False)
    worker.publish_prefixes()
    assert len(sent) == 2


def test_a_new_coordinator_is_told_of_all_that_is_kept() -> None:
    sent: list = []
    worker = a_worker(sent)
    run_prompt(worker, sent)
    worker.publish_prefixes()
    first = [m for m in sent if isinstance(m, PrefixesChanged)]
    assert first[0].added
    worker.handle(LOST)
    worker.publish_prefixes()
    again = [m for m in sent if isinstance(m, PrefixesChanged)][1:]
    assert [set(m.added) for m in again] == [set(first[0].added)]


def test_prefixes_that_only_host_memory_has_are_told_without_an_offer() -> None:
    sent: list = []
    worker = a_worker(sent, num_blocks=100)
    run_prompt(worker, sent)
    host, kept = worker._room.prefixes.host, worker._room.allocator.kept
    keys = {each.key for each in kept}
    assert {each.key for each in told(worker, sent).added} == keys
    host.ahead = worker._room.allocator.size
    while len(kept):
        worker.step()
        host._copier.end_all()
    message = told(worker, sent)
    assert set(message.removed) == keys
    assert {(each.key, each.offer) for each in message.added} == {(key, None) for key in keys}
    worker.handle(LOST)
    assert {(m.key, m.offer) for m in told(worker, sent).added} == {(key, None) for key in keys}
    gone = next(iter(keys))
    host.drop(gone)
    message = told(worker, sent)
    assert (message.added, message.removed) == ((), (gone,))


def test_without_states_it_names_every_page() -> None:
    sent: list = []
    worker = a_worker(sent, layout=PAGES_ALONE)
    run_prompt(worker, sent)
    added = told(worker, sent).added
    assert {prefix.num_tokens for prefix in added} == {144, 153}
    for prefix in added:
        assert len(prefix.page_keys) == prefix.num_tokens // 16
        assert prefix.page_keys[-1] == prefix.pages_key
        assert prefix.offer is not None
        assert prefix.offer.state_slot >= 8, "no state slot"
    assert not any(prefix.page_keys for prefix in _with_states().added)


def _with_states() -> PrefixesChanged:
    sent: list = []
    worker = a_worker(sent)
    run_prompt(worker, sent)
    return told(worker, sent)
