"""What a worker tells the coordinator of the prefixes that it keeps."""

from types import SimpleNamespace

from colocated.limits import ColocatedLimits
from prefill.scheduler import PrefillLimits
from tests.simulation.fake_engine import FakeEngine
from transport.copy.pull import NoPeers
from transport.wire.layout import PoolSize
from transport.wire.messages import Generate, Tokens
from transport.wire.offers import PrefixesChanged
from transport.wire.sampling import SamplingParams, StopRule
from transport.wire.token_ids import packed, to_wire
from worker.settings import HandoffSettings, PrefixCacheSettings
from worker.worker import Worker


def a_worker(sent: list, *, enabled: bool = True) -> Worker:
    return Worker(
        FakeEngine(PoolSize(40, 8)),
        SimpleNamespace(send=sent.append),
        "colocated",
        "c-1",
        ColocatedLimits(PrefillLimits(256, 4), 64),
        HandoffSettings(),
        NoPeers(),
        lookahead=0,
        prefix_cache=PrefixCacheSettings(enabled=enabled, min_saved_tokens=64),
        clock=lambda: 0.0,
    )


def test_it_says_once_that_it_keeps_prefixes_also_before_there_is_one() -> None:
    sent: list = []
    worker = a_worker(sent)
    worker.tell()
    worker.tell()
    assert sent == [PrefixesChanged()]
    worker.drop_all()
    worker.tell()
    assert sent == [PrefixesChanged()] * 2, "to the next coordinator"
    worker = a_worker(sent, enabled=False)
    worker.tell()
    assert len(sent) == 2


def test_a_new_coordinator_is_told_of_all_that_is_kept() -> None:
    sent: list = []
    worker = a_worker(sent)
    prompt = to_wire(packed(n % 60 for n in range(150)))
    worker.handle(Generate("r", 1, 1, prompt, 150, SamplingParams(), StopRule(4)))
    while not any(t.finish for m in sent if isinstance(m, Tokens) for t in m.tokens):
        worker.step()
    worker.step()
    worker.tell()
    told = [m for m in sent if isinstance(m, PrefixesChanged)]
    assert told[0].added
    worker.drop_all()
    worker.tell()
    again = [m for m in sent if isinstance(m, PrefixesChanged)][1:]
    assert [set(m.added) for m in again] == [set(told[0].added)]
