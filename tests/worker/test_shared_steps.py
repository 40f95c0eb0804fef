"""When a worker takes part in the steps of its spread group."""

from types import SimpleNamespace

import pytest

from engine.batch import ForwardBatch
from tests.simulation.fake_engine import FakeEngine, FakeStep
from tests.worker.made import make_worker
from transport.wire.layout import PoolSize
from transport.wire.messages import Generate
from transport.wire.sampling import SamplingParams, StopRule
from transport.wire.token_ids import packed, to_wire
from worker.launches import SHORT_S
from worker.spread.group import Alone, Plan
from worker.worker import LOOK_S


class Listening(Alone):
    """A group that takes no step, and hears whether its member would."""

    def __init__(self) -> None:
        self.heard: list[bool] = []

    def decide(self, num_rows: int, num_drafts: int = 0, *, willing: bool) -> Plan:
        self.heard.append(willing)
        return super().decide(num_rows, num_drafts, willing=willing)


class Site(FakeEngine):
    """A worker, whose device is done with a batch when the test says so."""

    def __init__(self, awake_s: float = 0.0) -> None:
        super().__init__(PoolSize(60, 8))
        self.group, self.now, self.device_done = Listening(), 0.0, False
        self.worker = make_worker(
            self,
            SimpleNamespace(send=lambda message: None, in_socket_s=0.0),
            "colocated",
            lookahead=1,
            group=self.group,
            awake_s=awake_s,
            clock=lambda: self.now,
        )

    def launch(self, batch: ForwardBatch) -> FakeStep:
        step = super().launch(batch)
        step.looks_done = lambda: self.device_done
        return step

    def ask(self, name: str, arrival: int, length: int, num_tokens: int = 40) -> None:
        prompt, stop = to_wire(packed(tuple(i % 64 for i in range(length)))), StopRule(num_tokens)
        self.worker.handle(Generate(name, 1, arrival, prompt, length, SamplingParams(), stop))

    def decode(self, prompt_s: float) -> None:
        """Compute a first prompt, which takes ``prompt_s``, and begin to decode."""
        self.ask("first", 1, 20)
        self.worker.step()
        self.now += prompt_s
        for _ in range(3):
            self.worker.step()
        assert self.group.heard[-1], "it decodes, and has no prompt"
        del self.group.heard[:]


def putting_off() -> Site:
    """A worker with others that has launched long prompts, and then puts off its next step."""
    site = Site()
    site.decode(4 * SHORT_S)
    site.group.joined = True
    site.ask("second", 2, 20)
    site.worker.step()
    site.worker.step()
    assert site.group.heard == [False], "that of the prompts' launch"
    return site


@pytest.mark.parametrize(("prompt_s", "is_short"), [(2 * SHORT_S, False), (SHORT_S / 2, True)])
def test_only_prompts_that_take_little_time_are_waited_for(prompt_s: float, is_short: bool) -> None:
    site = Site()
    site.decode(prompt_s)
    site.ask("second", 2, 20)
    site.worker.step()
    assert site.group.heard == [False], "a prompt waits, and is launched behind this step"
    site.worker.step()
    assert site.group.heard == [False, is_short], "its batch is under way"
    site.worker.step()
    assert site.group.heard == [False, is_short, True]


def test_more_tokens_take_longer() -> None:
    site = Site()
    site.decode(0.8 * SHORT_S)
    site.ask("second", 2, 30)
    site.worker.step()
    site.worker.step()
    assert site.group.heard == [False, False]


def test_a_batch_of_a_size_that_is_new_may_take_long() -> None:
    site = Site()
    site.decode(SHORT_S / 100)
    site.ask("second", 2, 70)
    site.worker.step()
    site.worker.step()
    assert site.group.heard == [False, False]


@pytest.mark.parametrize("ends_early", [False, True])
def test_with_others_it_is_decided_shortly_before_long_prompts_end(ends_early: bool) -> None:
    site = putting_off()
    assert site.worker.wait_s() == LOOK_S
    if ends_early:
        site.device_done = True
    else:
        site.now += 3.1 * SHORT_S
    site.worker.step()
    assert site.group.heard == [False, True]


@pytest.mark.parametrize("others_decode", [True, False])
def test_a_worker_without_sequences_puts_off_its_part_in_those_of_others(
    others_decode: bool,
) -> None:
    site = Site()
    site.ask("first", 1, 20, num_tokens=1)
    site.worker.step()
    site.now += 4 * SHORT_S
    site.worker.step()
    site.group.joined, site.group.others_decode = True, others_decode
    del site.group.heard[:]
    site.ask("second", 2, 20, num_tokens=1)
    site.worker.step()
    site.worker.step()
    assert (site.worker.wait_s() == LOOK_S) == others_decode
    site.now += 3.1 * SHORT_S
    site.worker.step()
    assert site.group.heard[-1], "the prompt ends soon, or has ended"


def test_a_prompt_that_comes_meanwhile_does_not_wait_for_the_step_to_be_put_off() -> None:
    site = putting_off()
    site.ask("third", 3, 20)
    site.worker.step()
    assert site.group.heard == [False, False], "a step between two batches of prompts"


def test_prompts_come_before_the_next_step_of_sequences_that_have_just_had_one() -> None:
    site = Site()
    site.decode(4 * SHORT_S)
    site.group.joined = site.group.in_step = True
    site.ask("second", 2, 20)
    site.worker.step()
    assert site.group.heard == []
    assert site.worker.wait_s() == LOOK_S, "the prompts are computed"
    site.group.in_step = False
    site.now += 4 * SHORT_S
    site.worker.step()
    assert site.group.heard == [True]


def test_prompts_that_are_held_do_not_come_before_the_step() -> None:
    site = Site()
    site.decode(4 * SHORT_S)
    site.group.joined = site.group.in_step = site.group.holds_prompts = True
    site.ask("second", 2, 20)
    site.worker.step()
    assert site.group.heard == [True]


@pytest.mark.parametrize(("length", "waits"), [(20, True), (60, False)])
def test_short_prompts_wait_where_the_others_wait_for_this_worker(length: int, waits: bool) -> None:
    site = Site()
    site.decode(0.8 * SHORT_S)
    site.group.joined = site.group.is_awaited = True
    site.ask("second", 2, length)
    site.worker.step()
    assert site.group.heard == [waits]
