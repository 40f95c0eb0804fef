"""Prompts and running sequences on one worker: who goes first, who gives way, what is left."""

from functools import partial
from itertools import count
from types import SimpleNamespace

import pytest

from engine.batch import ForwardBatch
from prefill.limits import PrefillLimits, RoundLimits
from tests.simulation.fake_engine import FakeEngine, FakeStep, expected_output
from tests.worker.made import make_worker
from transport.wire.layout import PoolSize
from transport.wire.messages import Cancel, Failed, Generate, Prefilled, Tokens
from transport.wire.sampling import SamplingParams, StopRule
from transport.wire.session import LOST
from transport.wire.token_ids import packed, to_wire
from worker import launches
from worker.settings import PrefixCacheSettings

PAGE = 16


class Watched(FakeEngine):
    """A fake engine that keeps what it was given to compute."""

    def __init__(self, size: PoolSize) -> None:
        super().__init__(size)
        self.batches: list[ForwardBatch] = []
        self.max_ahead = 0

    def launch(self, batch: ForwardBatch) -> FakeStep:
        self.batches.append(batch)
        step = super().launch(batch)
        self.max_ahead = max(self.max_ahead, sum(isinstance(s, FakeStep) for s in self.queue))
        return step


class Bench:
    """One pool, driven by hand."""

    def __init__(self, *, lookahead: int = 0, num_pages: int = 40, beside: int = 64) -> None:
        self.engine = Watched(PoolSize(num_pages, 8))
        self.sent: list = []
        self.pool = make_worker(
            self.engine,
            SimpleNamespace(send=self.sent.append),
            "colocated",
            instance="c-1",
            limits=RoundLimits(PrefillLimits(256, 4), beside),
            lookahead=lookahead,
            prefix_cache=PrefixCacheSettings(enabled=False),  # all prompts begin alike
            clock=lambda: 0.0,
        )

    def ask(self, name: str, length: int, max_tokens: int = 1000, arrival: int = 1) -> None:
        stop = StopRule(max_tokens)
        prompt = to_wire(packed(i % 64 for i in range(length)))
        self.pool.handle(Generate(name, 1, arrival, prompt, length, SamplingParams(), stop))

    def steps(self, number: int) -> None:
        for _ in range(number):
            self.pool.step()
            assert self.pool.gauges().accounting_error == ""

    def output(self, name: str) -> list[int]:
        tokens = [m.token for m in self.sent if isinstance(m, Prefilled)]
        tokens += [t for m in self.sent if isinstance(m, Tokens) for t in m.tokens]
        return [token.token_id for token in tokens if token.request_id == name]

    def failures(self) -> list[tuple[str, str, bool]]:
        return [(m.request_id, m.code, m.retry) for m in self.sent if isinstance(m, Failed)]

    def all_free(self) -> bool:
        gauges = self.pool.gauges()
        return self.pool.empty and (gauges.free_pages, gauges.free_state_slots) == (
            self.engine.pools.num_pages,
            self.engine.pools.num_state_slots,
        )


@pytest.mark.parametrize("lookahead", [0, 1])
def test_a_prompt_goes_on_in_the_pages_it_filled(lookahead: int) -> None:
    bench = Bench(lookahead=lookahead)
    bench.ask("r", 70, max_tokens=30)
    bench.steps(40)
    assert bench.output("r") == expected_output(tuple(i % 64 for i in range(70)), StopRule(30))
    assert bench.all_free()
    assert bench.engine.max_ahead == lookahead + 1


def test_beside_running_sequences_prompts_come_in_bounded_pieces() -> None:
    bench = Bench(beside=64)
    bench.ask("long", 200, arrival=1)
    bench.steps(1)
    assert [b.num_tokens for b in bench.engine.batches] == [200], "nothing ran beside it"
    bench.ask("late", 200, arrival=2)
    bench.engine.batches.clear()
    bench.steps(4)
    assert [b.num_tokens for b in bench.engine.batches] == [1, 64] * 3 + [1, 8]
    assert len(bench.output("long")) == 5, "a token each round"


def test_a_burst_of_prompts_comes_in_whole_batches() -> None:
    bench = Bench(beside=64)
    for number in range(3):
        bench.ask(f"running-{number}", 20, arrival=number)
    bench.steps(1)
    bench.engine.batches.clear()
    bench.ask("late-1", 100, arrival=4)
    bench.ask("late-2", 100, arrival=5)
    bench.steps(2)
    assert [b.num_tokens for b in bench.engine.batches] == [3, 200, 5]


def test_a_prompt_waits_until_every_running_sequence_keeps_a_page() -> None:
    bench = Bench(num_pages=6)
    bench.ask("first", 3 * PAGE, arrival=1)
    bench.steps(2)  # holds four pages now
    bench.ask("second", 2 * PAGE, arrival=2)
    bench.steps(3)
    assert bench.pool.gauges().waiting == 1
    assert bench.pool.wait_s() == 0.0, "the first still has work"
    bench.pool.handle(Cancel("first", 1))
    bench.steps(1)
    assert bench.output("second")


@pytest.mark.parametrize("lookahead", [0, 1])
def test_a_younger_prompt_gives_way_to_a_running_sequence(lookahead: int) -> None:
    bench = Bench(num_pages=1 + 4 * 28 + 1, lookahead=lookahead)
    bench.ask("old", PAGE - 4, arrival=1)
    bench.steps(2)
    for number in range(4):
        bench.ask(f"prompt-{number}", 28 * PAGE, arrival=2 + number)
    bench.steps(9)  # the first prompt is done after seven pieces, and then needs another page
    assert bench.failures() == [("prompt-3", "preempted", True)]
    bench.steps(20)
    assert bench.failures() == [("prompt-3", "preempted", True)]
    assert len(bench.output("old")) >= 29
    assert all(bench.output(f"prompt-{number}") for number in range(3))


@pytest.mark.parametrize("lookahead", [0, 1])
def test_one_prompt_makes_room_for_all_that_run(lookahead: int) -> None:
    bench = Bench(num_pages=6 + 6 + 100, lookahead=lookahead)
    names = [f"old-{number}" for number in range(6)]
    for number, name in enumerate(names):
        bench.ask(name, PAGE - 4, arrival=number)
    bench.steps(2)
    bench.ask("prompt", 100 * PAGE, arrival=9)
    bench.steps(26)  # on the way all six need a third page at once, under a piece of the prompt
    assert bench.failures() == [("prompt", "preempted", True)]
    assert all(len(bench.output(name)) > 20 for name in names)


def test_a_prompt_gives_way_only_to_older_sequences() -> None:
    bench = Bench()
    bench.ask("old", 250, arrival=5)
    bench.ask("young", 250, arrival=9)
    bench.steps(1)
    assert not bench.pool._room.reclaim(10)
    assert bench.pool._room.reclaim(3)
    assert bench.failures() == [("young", "preempted", True)]


@pytest.mark.parametrize("lookahead", [0, 1])
def test_everything_is_given_back_or_dropped(lookahead: int) -> None:
    for end in ("give_back", LOST):
        bench = Bench(lookahead=lookahead)
        bench.ask("running", 20, arrival=1)
        bench.steps(3)
        bench.ask("filling", 250, arrival=2)
        bench.steps(1)
        for number in range(8):
            bench.ask(f"waiting-{number}", 200, arrival=3 + number)
        held = {name for name, _ in bench.pool.held()}
        assert len(held) == 10
        if end == LOST:
            bench.pool.handle(LOST)
        else:
            bench.pool.fail_all()
        assert bench.pool.held() == ()
        bench.steps(2)
        assert bench.all_free()
        reported = {name for name, code, retry in bench.failures() if (code, retry) ==
                    ("draining", True)}  # fmt: skip
        assert reported == (held if end == "give_back" else set())


def test_a_first_token_may_be_the_last() -> None:
    bench = Bench()
    bench.ask("r", 20, max_tokens=1)
    bench.steps(2)
    (message,) = bench.sent
    assert (message.offer, message.token.finish) == (None, "length")
    assert bench.all_free()


def test_what_can_never_fit_is_refused() -> None:
    bench = Bench(num_pages=4)
    bench.ask("r", 5 * PAGE)
    assert bench.failures() == [("r", "too_long", False)]
    assert bench.all_free()


@pytest.mark.parametrize("lookahead", [0, 1])
def test_what_outgrows_the_pool_fails_for_good(lookahead: int) -> None:
    bench = Bench(num_pages=2, lookahead=lookahead)
    bench.ask("r", PAGE)
    bench.steps(PAGE + 4)
    assert len(bench.output("r")) == PAGE + 1
    assert bench.failures() == [("r", "too_long", False)]
    assert bench.all_free()


def test_a_newer_attempt_takes_the_place_of_an_older_one() -> None:
    bench = Bench()
    bench.ask("r", 20)
    bench.steps(3)
    order = Generate("r", 2, 1, to_wire(packed((1, 2, 3))), 3, SamplingParams(), StopRule(5))
    bench.pool.handle(order)
    assert bench.pool.held() == (("r", 2),)


def test_a_cancel_of_what_is_over_is_counted_as_stale() -> None:
    bench = Bench()
    bench.ask("r", 20)
    bench.pool.handle(Cancel("r", 1))
    assert bench.pool.gauges().stale_dropped == 0
    bench.pool.handle(Cancel("r", 1))
    assert bench.pool.gauges().stale_dropped == 1


def test_limits_name_their_setting() -> None:
    with pytest.raises(ValueError, match=r"^max_tokens_beside_decode"):
        RoundLimits(PrefillLimits(256, 4), 63)


def test_batches_of_many_prompt_tokens_are_counted_with_their_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(launches, "MANY_TOKENS", 128)
    bench = Bench()
    bench.pool._launches._clock = partial(next, count(0.0, 0.5))
    bench.ask("many", 200, max_tokens=1)
    bench.steps(3)
    found = bench.pool.gauges().prompts
    assert (found.num_tokens, found.seconds) == (200, 0.5)
    bench.ask("few", 100, max_tokens=1)
    bench.steps(3)
    assert bench.pool.gauges().prompts == found
    assert bench.output("few")
