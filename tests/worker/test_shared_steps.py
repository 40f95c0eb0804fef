"""When a worker takes part in the steps of its spread group."""

from types import SimpleNamespace

import pytest

from tests.simulation.fake_engine import FakeEngine
from tests.worker.made import make_worker
from transport.wire.layout import PoolSize
from transport.wire.messages import Generate
from transport.wire.sampling import SamplingParams, StopRule
from transport.wire.token_ids import packed, to_wire
from worker.launches import SHORT_S
from worker.spread.group import Alone, Plan


class Listening(Alone):
    """A group that takes no step, and hears whether its member would."""

    def __init__(self) -> None:
        self.heard: list[bool] = []

    def decide(self, num_rows: int, num_drafts: int = 0, *, willing: bool) -> Plan:
        self.heard.append(willing)
        return super().decide(num_rows, num_drafts, willing=willing)


class Site:
    """A worker whose clock goes on by ``tick_s`` whenever it looks."""

    def __init__(self, tick_s: float) -> None:
        self.group, self._now, self._tick_s = Listening(), 0.0, tick_s
        self.worker = make_worker(
            FakeEngine(PoolSize(60, 8)),
            SimpleNamespace(send=lambda message: None, in_socket_s=0.0),
            "colocated",
            lookahead=1,
            group=self.group,
            clock=self._clock,
        )

    def _clock(self) -> float:
        self._now += self._tick_s
        return self._now

    def ask(self, name: str, arrival: int, length: int) -> None:
        prompt = to_wire(packed(tuple(i % 64 for i in range(length))))
        self.worker.handle(
            Generate(name, 1, arrival, prompt, length, SamplingParams(), StopRule(40))
        )

    def decodes(self) -> None:
        """Compute a first prompt, and begin to decode."""
        self.ask("first", 1, 20)
        for _ in range(4):
            self.worker.step()
        assert self.group.heard[-1], "it decodes, and has no prompt"
        del self.group.heard[:]


@pytest.mark.parametrize(("tick_s", "short"), [(SHORT_S, False), (SHORT_S / 100, True)])
def test_only_prompts_that_take_little_time_are_waited_for(tick_s: float, short: bool) -> None:
    site = Site(tick_s)
    site.decodes()
    site.ask("second", 2, 20)
    site.worker.step()
    assert site.group.heard == [False], "a prompt waits, and is launched behind this step"
    site.worker.step()
    assert site.group.heard == [False, short], "its batch is under way"
    site.worker.step()
    assert site.group.heard == [False, short, True]


def test_a_batch_of_a_size_that_is_new_may_take_long() -> None:
    site = Site(SHORT_S / 100)
    site.decodes()
    site.ask("second", 2, 70)
    site.worker.step()
    site.worker.step()
    assert site.group.heard == [False, False]
