"""A sequence waits for its grammar alone: others go on, and it may end in any way meanwhile."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import get_args

import pytest

from engine.sampling.constraints import COMPILE_S
from tests.decode.test_room import HandPull
from tests.simulation.fake_engine import FakeEngine, expected_output
from tests.worker.made import make_worker
from transport.wire.layout import PoolSize
from transport.wire.messages import (
    Cancel,
    Decode,
    Failed,
    Generate,
    Prefill,
    Prefilled,
    Role,
    Tokens,
    TransferDone,
)
from transport.wire.offers import Offer
from transport.wire.sampling import Constraint, SamplingParams, StopRule
from transport.wire.session import LOST
from transport.wire.token_ids import packed, to_wire
from worker.settings import PrefixCacheSettings

LENGTH = 20
PROMPT = tuple(i % 64 for i in range(LENGTH))
GRAMMAR = SamplingParams(constraint=Constraint("any"))
FREE = SamplingParams()
ROLES = pytest.mark.parametrize("role", get_args(Role))


class Site:
    """A worker whose grammars are compiled when the test says so."""

    def __init__(self, role: Role, *, num_pages: int = 40) -> None:
        self.role, self.now, self.num_wakes = role, 0.0, 0
        self.sent: list = []
        self.pulls: list[HandPull] = []
        self.engine = FakeEngine(PoolSize(num_pages, 8))
        session = SimpleNamespace(send=self.sent.append, in_socket_s=0.0, wake=self._wake)
        puller = SimpleNamespace(
            pull=self._pull, close_peer=lambda instance: None, close=lambda: True
        )
        self.pool = make_worker(
            self.engine, session, role, puller=puller, lookahead=1, clock=lambda: self.now,
            prefix_cache=PrefixCacheSettings(enabled=False),  # all prompts begin alike
        )  # fmt: skip
        self.pool._room.transfers.peers.add("p-1")

    @property
    def grammars(self) -> list[Future]:
        return self.engine.compiling

    def _wake(self) -> None:
        self.num_wakes += 1

    def _pull(self, wanted: list) -> list[HandPull]:
        pulls = [HandPull() for _ in wanted]
        for pull in pulls:
            pull.finished = True
        self.pulls += pulls
        return pulls

    def ask(self, name: str, arrival: int, sampling: SamplingParams, max_tokens: int = 9) -> None:
        what = (sampling, StopRule(max_tokens))
        prompt = to_wire(packed(PROMPT))
        match self.role:
            case "prefill":
                self.pool.handle(Prefill(name, 1, arrival, prompt, LENGTH, *what))
            case "colocated":
                self.pool.handle(Generate(name, 1, arrival, prompt, LENGTH, *what))
            case "decode":
                tokens, offer = to_wire(packed((*PROMPT, 5))), Offer("p-1", (0, 1), 0, 1, LENGTH)
                self.pool.handle(Decode(name, 1, arrival, tokens, LENGTH, *what, offer=offer))

    def steps(self, number: int) -> None:
        for _ in range(number):
            self.pool.step()
            assert self.pool.gauges().accounting_error == ""

    def num_tokens(self, name: str) -> int:
        told = [m.token for m in self.sent if isinstance(m, Prefilled)]
        told += [t for m in self.sent if isinstance(m, Tokens) for t in m.tokens]
        return sum(token.request_id == name for token in told)

    def failures(self) -> list[tuple[str, str, str, bool]]:
        failed = [m for m in self.sent if isinstance(m, Failed)]
        return [(m.request_id, m.code, m.message, m.retry) for m in failed]

    def all_free(self) -> bool:
        gauges, pools = self.pool.gauges(), self.engine.pools
        free = gauges.free_pages, gauges.free_state_slots
        return self.pool.empty and free == (pools.num_pages, pools.num_state_slots)


@ROLES
def test_others_go_on_and_it_follows_when_its_grammar_is_compiled(role: Role) -> None:
    site = Site(role)
    site.ask("held", 1, GRAMMAR)
    site.ask("other", 2, FREE)
    site.steps(4)
    assert site.num_tokens("other") >= 1
    assert site.num_tokens("held") == 0
    assert ("held", 1) in site.pool.held()
    site.grammars.pop().set_result(None)
    site.steps(4)
    assert site.num_tokens("held") >= 1
    assert site.failures() == []


@ROLES
def test_the_loop_sleeps_until_a_thread_wakes_it(role: Role) -> None:
    site = Site(role)
    site.ask("held", 1, GRAMMAR)
    site.steps(3)
    assert site.pool.wait_s() > 0, "nothing to compute, and no polling"
    assert not site.pool.empty
    assert site.num_wakes == 0
    site.grammars.pop().set_result(None)
    assert site.num_wakes == 1
    site.steps(1)
    assert site.num_tokens("held") == 1 or site.pool.wait_s() == 0.0


@ROLES
def test_a_grammar_that_takes_too_long_fails_its_request_alone(role: Role) -> None:
    site = Site(role)
    site.ask("held", 1, GRAMMAR)
    site.ask("other", 2, FREE, max_tokens=1000)
    site.grammars[0].set_running_or_notify_cancel()
    site.steps(2)
    site.now += COMPILE_S - 0.1
    site.steps(1)
    assert site.failures() == []
    site.now += 0.1
    site.steps(3)
    error = "the grammar was not compiled within 10 s"
    assert site.failures() == [("held", "constraint_failed", error, False)]
    assert site.num_tokens("other") >= 1
    site.grammars.pop().set_result(None)  # in vain
    site.steps(3)
    assert len(site.failures()) == 1
    assert "held" not in dict(site.pool.held())


def test_a_grammar_in_line_has_its_time_from_when_its_turn_comes() -> None:
    site = Site("colocated")
    for number in range(3):
        site.ask(f"r{number}", number, GRAMMAR)
    for number in range(2):
        site.grammars[0].set_running_or_notify_cancel()
        site.steps(1)
        site.now += COMPILE_S - 1
        site.steps(1)
        site.grammars.pop(0).set_result(None)
        site.steps(2)
        assert site.num_tokens(f"r{number}") >= 1
    assert site.failures() == []
    site.now += COMPILE_S  # no thread takes up the last one
    site.steps(1)
    assert [name for name, *_ in site.failures()] == ["r2"]


def test_another_request_for_a_grammar_under_way_gives_those_in_line_no_more_time() -> None:
    site = Site("colocated")
    site.ask("stuck", 1, GRAMMAR)
    site.ask("in line", 2, GRAMMAR)
    stuck = site.grammars[0]
    stuck.set_running_or_notify_cancel()
    site.steps(1)
    site.engine.prepare = lambda sampling: stuck
    for number in range(2):
        site.now += COMPILE_S / 2
        site.ask(f"again {number}", 3 + number, GRAMMAR)
        site.steps(1)
    assert [name for name, *_ in site.failures()] == ["stuck", "in line"]


@ROLES
@pytest.mark.parametrize("end", ["cancel", "give_back", LOST])
def test_it_may_end_in_any_way_while_it_waits(role: Role, end: str) -> None:
    site = Site(role)
    site.ask("held", 1, GRAMMAR)
    site.steps(3)
    if end == "cancel":
        site.pool.handle(Cancel("held", 1))
    elif end == LOST:
        site.pool.handle(LOST)
    else:
        site.pool.fail_all()
    site.steps(1)
    assert site.all_free()
    site.now += 2 * COMPILE_S
    site.steps(1)
    site.grammars.pop().set_result(None)
    site.steps(2)
    expected = [("held", "draining")] if end == "give_back" else []
    assert [(name, code) for name, code, *_ in site.failures()] == expected
    assert site.all_free()


def test_a_handoff_is_copied_meanwhile_and_bound_afterwards() -> None:
    site = Site("decode")
    site.ask("held", 1, GRAMMAR)
    site.steps(2)
    assert any(isinstance(message, TransferDone) for message in site.sent)
    assert not site.engine.queue, "neither bound nor in a step"
    site.grammars.pop().set_result(None)
    site.steps(1)
    site.engine.run_one()
    assert 5 in site.engine.next_token, "its last token feeds its first step"


@ROLES
def test_each_sequence_is_bound_once_when_its_first_batch_is_scheduled(role: Role) -> None:
    site = Site(role)
    bound: list[int] = []
    bind = site.engine.bind
    site.engine.bind = lambda binding: bound.append(binding.state_slot) or bind(binding)
    room = site.pool._room
    scheduler = room.sequences if role == "decode" else room.prompts
    schedule, scheduler.schedule = scheduler.schedule, lambda most: None
    site.ask("held", 1, GRAMMAR)
    site.ask("other", 2, FREE)
    site.steps(2)
    assert bound == [], "neither has a batch"
    scheduler.schedule = schedule
    site.steps(3)
    assert len(bound) == 1
    site.grammars.pop().set_result(None)
    site.steps(9)
    assert len(bound) == 2


def test_one_that_waits_may_be_preempted() -> None:
    site = Site("decode", num_pages=5)
    site.ask("old", 1, FREE, max_tokens=100)
    site.ask("held", 2, GRAMMAR)
    site.steps(40)
    assert [(name, code) for name, code, *_ in site.failures()] == [("held", "preempted")]
    site.grammars.pop().set_result(None)
    site.steps(5)
    assert len(site.failures()) == 1


def test_prompts_that_wait_make_no_burst() -> None:
    """Beside running sequences a batch of prompts is small, unless most of the work is prompts."""
    site = Site("colocated", num_pages=100)
    site.ask("running", 1, FREE, max_tokens=100)
    site.steps(2)
    for number in range(4):
        site.ask(f"held-{number}", 2 + number, GRAMMAR)
    most: list[int | None] = []
    prompts = site.pool._room.prompts
    schedule = prompts.schedule
    prompts.schedule = lambda tokens: most.append(tokens) or schedule(tokens)
    site.steps(1)
    assert most == [64]


def test_texts_are_those_that_come_without_waiting() -> None:
    site = Site("colocated")
    for number in range(6):
        site.ask(f"r{number}", number, GRAMMAR if number % 2 else FREE)
    site.steps(3)
    while site.grammars:
        site.grammars.pop().set_result(None)
        site.steps(2)
    site.steps(20)
    tokens = [m.token for m in site.sent if isinstance(m, Prefilled)]
    tokens += [t for m in site.sent if isinstance(m, Tokens) for t in m.tokens]
    for number in range(6):
        found = [token.token_id for token in tokens if token.request_id == f"r{number}"]
        assert found == expected_output(PROMPT, StopRule(9))
    assert site.all_free()


def test_a_closed_worker_is_woken_no_more() -> None:
    site = Site("colocated")
    site.ask("held", 1, GRAMMAR)
    site.pool.close()
    site.grammars.pop().set_result(None)
    assert site.num_wakes == 0
