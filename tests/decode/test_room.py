"""A decode worker short of pages, with copies that take as long as the test wants."""

from types import SimpleNamespace

import pytest

from tests.simulation.fake_engine import FakeEngine
from tests.worker.made import make_worker
from transport.copy.pull import Copied
from transport.wire.errors import StaleEpoch
from transport.wire.layout import PoolSize
from transport.wire.messages import Cancel, Decode, Failed, Tokens, TransferDone
from transport.wire.offers import Offer
from transport.wire.sampling import SamplingParams, StopRule
from transport.wire.token_ids import packed, to_wire
from worker.handoff import COPY_WAIT_S
from worker.settings import HandoffSettings

PAGE = 16
PULL_TIMEOUT_S = 10.0


class HandPull:
    """A copy that is done when the test says so."""

    def __init__(self) -> None:
        self.finished = False
        self.stale = False
        self.waited_s = 0.0

    def done(self) -> bool:
        return self.finished

    def wait(self, timeout_s: float) -> bool:
        self.waited_s += timeout_s
        return self.finished

    def result(self) -> Copied:
        if self.stale:
            raise StaleEpoch("it changed hands")
        return Copied(num_bytes=1, copy_s=0.0)


class Site:
    """A pool that knows one prefill worker; time stands still but for the test."""

    def __init__(self, num_pages: int, lookahead: int = 0) -> None:
        self.now = 0.0
        self.sent: list = []
        self.pulls: list[HandPull] = []
        self.engine = FakeEngine(PoolSize(num_pages, 8))
        puller = SimpleNamespace(pull=self._pull, close_peer=lambda instance: None)
        self.pool = make_worker(
            self.engine,
            SimpleNamespace(send=self.sent.append, in_socket_s=0.0),
            "decode",
            handoff=HandoffSettings(pull_timeout_s=PULL_TIMEOUT_S),
            puller=puller,
            lookahead=lookahead,
            clock=lambda: self.now,
        )
        self.pool._room.transfers.peers.add("p-1")

    def _pull(self, wanted: list) -> list[HandPull]:
        pulls = [HandPull() for _ in wanted]
        self.pulls += pulls
        return pulls

    def ask(self, name: str, arrival: int, num_cached: int, max_tokens: int = 1000) -> None:
        tokens = packed(i % 64 for i in range(num_cached + 1))
        offer = Offer("p-1", tuple(range(-(-num_cached // PAGE))), 0, 1, num_cached)
        stop = StopRule(max_tokens)
        self.pool.handle(
            Decode(
                name, 1, arrival, to_wire(tokens), num_cached, SamplingParams(), stop, offer=offer
            )
        )

    def start(self, name: str, arrival: int, num_cached: int) -> None:
        """``ask``, and the copy is done at once."""
        self.ask(name, arrival, num_cached)
        self.steps(1)
        self.pulls[-1].finished = True
        self.steps(1)
        assert any(isinstance(m, TransferDone) and m.request_id == name for m in self.sent)

    def steps(self, number: int) -> None:
        for _ in range(number):
            self.pool.step()
            assert self.pool.gauges().accounting_error == ""

    def num_tokens(self, name: str) -> int:
        told = [t for m in self.sent if isinstance(m, Tokens) for t in m.tokens]
        return sum(token.request_id == name for token in told)

    def failures(self) -> list[tuple[str, str, bool]]:
        return [(m.request_id, m.code, m.retry) for m in self.sent if isinstance(m, Failed)]


@pytest.mark.parametrize("lookahead", [0, 1])
def test_a_younger_handoff_on_its_way_in_gives_way_to_the_oldest(lookahead: int) -> None:
    site = Site(num_pages=1 + 2 + 2, lookahead=lookahead)
    site.start("old", 1, PAGE - 1)
    site.ask("young", 2, 2 * PAGE - 1)
    site.steps(2 * PAGE + 4)
    assert site.failures() == [("young", "preempted", True)], "not the oldest, for all its pages"
    stood_at = site.num_tokens("old")
    assert site.pool.gauges().running == 1
    site.pulls[-1].finished = True
    site.steps(5)
    assert site.num_tokens("old") == stood_at + 5 - lookahead
    assert site.failures() == [("young", "preempted", True)]


@pytest.mark.parametrize("lookahead", [0, 1])
def test_a_step_of_what_runs_does_not_wait_for_a_copy_under_way(lookahead: int) -> None:
    site = Site(num_pages=20, lookahead=lookahead)
    site.start("running", 1, PAGE - 1)
    site.ask("receiving", 2, PAGE - 1)
    site.steps(1)
    waited_s = site.pulls[-1].waited_s
    for _ in range(5):
        site.steps(1)
        assert site.pool.wait_s() == 0.0
    assert site.pulls[-1].waited_s == waited_s
    assert site.num_tokens("running") >= 5


def test_an_older_handoff_on_its_way_in_keeps_its_pages() -> None:
    site = Site(num_pages=1 + 2 + 2)
    site.start("young", 2, PAGE - 1)
    site.ask("old", 1, 2 * PAGE - 1)
    site.steps(2 * PAGE + 4)
    assert site.failures() == [("young", "preempted", True)]


def test_pages_of_a_cancelled_handoff_are_waited_for_until_its_copy_is_overdue() -> None:
    site = Site(num_pages=1 + 2 + 2)
    site.start("old", 1, PAGE - 1)
    site.ask("young", 2, 2 * PAGE - 1)
    site.steps(1)
    site.pool.handle(Cancel("young", 1))
    site.steps(2 * PAGE + 4)
    assert site.failures() == []
    assert site.pool.wait_s() == 0.0
    assert site.pulls[-1].waited_s >= COPY_WAIT_S, "it looks at the copy instead of turning idly"
    site.now += PULL_TIMEOUT_S
    site.steps(1)
    assert site.failures() == [("old", "preempted", True)], "it may go on elsewhere"


def test_what_the_pool_can_never_hold_is_refused_at_once() -> None:
    site = Site(num_pages=10)
    site.ask("long", 1, 13 * PAGE)
    assert site.failures() == [("long", "too_long", False)]
    site.ask("full", 2, 10 * PAGE)
    assert site.failures()[1:] == [("full", "too_long", False)], "its next token has no place"
    site.start("short", 3, 2 * PAGE)
    assert site.pool.held() == (("short", 1),)


@pytest.mark.parametrize("lookahead", [0, 1])
def test_what_outgrows_the_pool_fails_for_good(lookahead: int) -> None:
    site = Site(num_pages=2, lookahead=lookahead)
    site.start("r", 1, PAGE)
    site.steps(PAGE + 2)
    assert site.num_tokens("r") == PAGE
    assert site.failures() == [("r", "too_long", False)]
    assert site.pool.empty
    assert site.pool.gauges().free_pages == 2


def test_what_is_stale_is_dropped_and_counted() -> None:
    site = Site(num_pages=10)
    site.ask("r", 1, PAGE)
    site.steps(1)
    site.pulls[-1].finished = site.pulls[-1].stale = True
    site.steps(1)
    assert site.failures() == [("r", "stale_offer", True)]
    assert site.pool.gauges().stale_dropped == 1
    site.pool.handle(Cancel("r", 1))
    assert site.pool.gauges().stale_dropped == 2, "it is over"
    site.start("s", 2, PAGE)
    site.pool.handle(Cancel("s", 1))
    assert site.pool.gauges().stale_dropped == 2, "that one was to the point"


def test_without_room_for_stuck_copies_an_order_goes_back_as_a_fault() -> None:
    site = Site(num_pages=4)
    site.ask("stuck", 1, 3 * PAGE - 1)
    site.ask("waiting", 2, 2 * PAGE - 1)
    site.steps(1)
    site.now += PULL_TIMEOUT_S - 0.1
    site.steps(1)
    assert site.failures() == []
    site.now += 0.1
    site.steps(2)
    assert site.failures() == [("stuck", "pull_timeout", True), ("waiting", "pull_timeout", True)]
    assert site.sent[-1].message == "no room came: 3 pages are held by copies that do not end"
    assert site.pool.held() == ()
    site.pulls[-1].finished = True
    site.steps(1)
    assert site.pool.empty
    assert site.pool.gauges().free_pages == 4


def test_without_room_for_running_sequences_an_order_goes_back_without_a_fault() -> None:
    site = Site(num_pages=4)
    site.start("old", 1, 2 * PAGE - 1)
    site.ask("waiting", 2, 2 * PAGE - 1)
    site.steps(1)
    site.now += PULL_TIMEOUT_S
    site.steps(2)
    assert site.failures() == [("waiting", "preempted", True)]
    assert site.pool.held() == (("old", 1),)
