"""When a worker takes part in the steps of its spread group."""

from types import SimpleNamespace

from tests.simulation.fake_engine import FakeEngine
from tests.worker.made import make_worker
from transport.wire.layout import PoolSize
from transport.wire.messages import Generate
from transport.wire.sampling import SamplingParams, StopRule
from transport.wire.token_ids import packed, to_wire
from worker.spread.group import Alone, Plan


class Listening(Alone):
    """A group that takes no step, and hears whether its member would."""

    def __init__(self) -> None:
        self.heard: list[bool] = []

    def decide(self, num_rows: int, num_drafts: int = 0, *, willing: bool) -> Plan:
        self.heard.append(willing)
        return super().decide(num_rows, num_drafts, willing=willing)


def test_no_step_is_shared_while_a_batch_of_prompts_is_under_way() -> None:
    group = Listening()
    worker = make_worker(
        FakeEngine(PoolSize(60, 8)),
        SimpleNamespace(send=lambda message: None, in_socket_s=0.0),
        "colocated",
        lookahead=1,
        group=group,
    )

    def ask(name: str, arrival: int) -> None:
        prompt = to_wire(packed(tuple(range(20))))
        worker.handle(Generate(name, 1, arrival, prompt, 20, SamplingParams(), StopRule(40)))

    ask("first", 1)
    for _ in range(4):
        worker.step()
    assert group.heard[-1], "it decodes, and has no prompt"
    del group.heard[:]
    ask("second", 2)
    worker.step()
    assert group.heard == [False], "a prompt waits, and is launched behind this step"
    worker.step()
    assert group.heard == [False, False], "its batch was not waited for yet"
    worker.step()
    assert group.heard == [False, False, True]
