"""What a decode worker does about peers that cannot be trusted, with real copies of real bytes."""

import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from tests.transport.exporters import LAYOUT, Exporter, own_cache
from tests.worker.made import make_worker
from transport.copy.digest import digest
from transport.copy.pull import Copied, CopyThread
from transport.wire.layout import PoolSize
from transport.wire.messages import (
    Decode,
    ExpectHandoff,
    Failed,
    PeerJoined,
    PeerTested,
    TransferDone,
)
from transport.wire.offers import Offer
from transport.wire.sampling import SamplingParams, StopRule
from transport.wire.token_ids import packed, to_wire
from worker.settings import HandoffSettings

SIZE = PoolSize(10, 3)
PAGES = (7, 0, 3)
NUM_TOKENS = 40


@pytest.fixture
def peer() -> Iterator[Exporter]:
    peer = Exporter.start(SIZE, seed=1)
    yield peer
    peer.close()


class Site:
    """A decode pool over a real cache, with an engine that computes nothing."""

    def __init__(
        self,
        *,
        verify_handoff: bool = False,
        awake_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.sent: list = []
        self.cache = own_cache(SIZE, seed=2)
        self.stream = CopyThread(self.cache)
        engine = SimpleNamespace(
            cache=self.cache, layout=LAYOUT, pools=SIZE,
            config=SimpleNamespace(poison=False), epoch_stream=None, fingerprint="m", overlap=None,
            prepare=lambda sampling: None,
        )  # fmt: skip
        session = SimpleNamespace(send=self.sent.append, in_socket_s=0.0)
        self.pool = make_worker(
            engine, session, "decode",
            handoff=HandoffSettings(pull_timeout_s=5.0, verify=verify_handoff),
            puller=self.stream, awake_s=awake_s, clock=clock,
        )  # fmt: skip
        self.pool._room.sequences.schedule = lambda room: None  # it never gets to a step

    def connect(self, peer: Exporter) -> PeerTested:
        self.pool.handle(PeerJoined(peer.instance, peer.export, hands_off=True))
        return self.sent.pop()

    def ask(self, offer: Offer, request_id: str = "r") -> None:
        tokens = to_wire(packed(range(NUM_TOKENS + 1)))
        self.pool.handle(
            Decode(request_id, 1, 1, tokens, NUM_TOKENS, SamplingParams(), StopRule(8), offer=offer)
        )

    def settle(self) -> None:
        self.pool.step()
        assert self.pool._room.transfers.copies.wait(5.0)
        self.pool.step()


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    yield site
    site.pool.close()


def offer(peer: Exporter, digested: str) -> Offer:
    peer.cache.epochs[2] = 5
    return Offer(peer.instance, PAGES, 2, 5, NUM_TOKENS, digested)


def test_a_peer_is_tested_before_it_is_of_use(site: Site, peer: Exporter) -> None:
    assert not site.pool.ready
    tested = site.connect(peer)
    assert (tested.instance, tested.problem) == (peer.instance, "")
    assert tested.num_bytes / tested.seconds > 0
    assert site.pool.ready
    assert site.connect(peer).problem == "", "told of again, it is tested again"


def test_a_peer_with_one_wrong_byte_is_reported_and_not_used(site: Site, peer: Exporter) -> None:
    assert peer.cache.probe is not None
    peer.cache.probe.recurrent.view(-1)[77] = 0.0  # the pattern has no byte that is zero
    tested = site.connect(peer)
    assert "arrived wrong" in tested.problem
    assert not site.pool.ready
    site.ask(offer(peer, ""))
    assert [(f.code, f.retry) for f in site.sent] == [("peer_gone", True)]


def test_a_peer_that_cannot_be_opened_is_reported(site: Site, peer: Exporter) -> None:
    peer.close()
    assert "no longer exists" in site.connect(peer).problem


@pytest.mark.parametrize("where", ["kv", "conv", "recurrent"])
def test_one_changed_byte_fails_the_request_loudly(
    where: str, site: Site, peer: Exporter, caplog: pytest.LogCaptureFixture
) -> None:
    site.connect(peer)
    asked = offer(peer, digest(peer.cache, PAGES, 2, NUM_TOKENS))
    site.ask(asked)
    site.settle()
    assert isinstance(site.sent.pop(), TransferDone)
    getattr(peer.cache, where)[0 if where == "kv" else 2].view(-1)[3] += 1.0
    site.ask(asked, "r2")
    site.settle()
    failed = site.sent.pop()
    assert isinstance(failed, Failed)
    assert (failed.request_id, failed.code, failed.retry) == ("r2", "digest_mismatch", True)
    (line,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert line.why == f"the cache changed on its way from {peer.instance}"
    assert line.request_id == "r2"
    running = [sequence.request_id for sequence in site.pool._room.sequences.running]
    assert running == ["r"], "only the faithful one may run"
    assert site.pool.gauges().free_state_slots == SIZE.num_state_slots - 1
    assert site.pool.gauges().accounting_error == ""


def test_who_verifies_takes_nothing_without_a_digest(
    peer: Exporter, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    site = Site(verify_handoff=True)
    try:
        site.connect(peer)
        site.ask(offer(peer, ""))
        site.settle()
        (failed,) = site.sent
        assert (failed.code, failed.retry) == ("digest_mismatch", True)
        assert failed.message == f"no digest came from {peer.instance}"
        assert site.pool._room.sequences.running == []
        site.ask(offer(peer, digest(peer.cache, PAGES, 2, NUM_TOKENS)), "r2")
        site.settle()
        assert isinstance(site.sent.pop(), TransferDone)
        assert [line.verified for line in caplog.records if line.message == "landed"] == [True]
    finally:
        site.pool.close()


def test_handoffs_that_are_wanted_together_are_pulled_together(site: Site, peer: Exporter) -> None:
    site.connect(peer)
    calls = []
    pull = site.stream.pull
    site.stream.pull = lambda wanted: calls.append(len(wanted)) or pull(wanted)
    for number in range(3):
        site.ask(offer(peer, ""), f"r{number}")
    site.settle()
    assert calls == [2], "the third finds no room: each running one keeps a page to grow"
    assert [type(message) for message in site.sent] == [TransferDone, TransferDone]


class SlowPull:
    """A copy that is done once somebody has waited ``takes_s`` for it."""

    def __init__(self, takes_s: float) -> None:
        self._left_s = takes_s

    def done(self) -> bool:
        return self._left_s <= 0

    def wait(self, timeout_s: float) -> bool:
        self._left_s -= timeout_s
        return self.done()

    def result(self) -> Copied:
        return Copied(num_bytes=7, copy_s=0.0)


@pytest.mark.parametrize(
    ("takes_s", "in_time"),
    [((0.0005,), 1), ((0.005,), 0), ((0.0005, 0.0015), 2), ((0.0025, 0.0025), 0)],
)
def test_a_step_is_put_off_for_short_copies_and_not_for_long_ones(
    peer: Exporter, takes_s: tuple[float, ...], in_time: int
) -> None:
    site = Site(clock=lambda: 1.0)
    site.connect(peer)
    pulls = [SlowPull(takes) for takes in takes_s]
    site.stream.pull = lambda wanted: pulls
    for number in range(len(pulls)):
        site.ask(offer(peer, ""), f"r{number}")
    site.pool.step()
    assert len(site.sent) == in_time
    for pull in pulls:
        pull.wait(1.0)
    site.pool.step()
    assert all(isinstance(landed, TransferDone) and landed.num_bytes == 7 for landed in site.sent)
    assert len(site.sent) == len(pulls)
    site.pool.close()


def test_it_is_awake_for_an_announced_handoff_until_that_comes(peer: Exporter) -> None:
    site = Site(awake_s=30.0)
    warmed_up: list[bool] = []
    site.stream.warm_up = lambda: warmed_up.append(True)
    site.connect(peer)
    assert site.pool.awake_s == 0.0
    site.pool.handle(ExpectHandoff())
    assert warmed_up == [True]
    assert 0.0 < site.pool.awake_s <= 30.0
    site.ask(offer(peer, ""))
    assert site.pool.awake_s == 0.0
    site.settle()
    site.pool.close()
