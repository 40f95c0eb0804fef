"""A real grammar that takes long to compile, beside a stream that goes on meanwhile."""

import itertools
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
from llguidance import LLMatcher

from engine.runner import Engine
from engine.sampling.grammars import Compiled
from tests.engine.driver import load_engine
from tests.worker.made import make_worker
from transport.wire.messages import Failed, Generate, Prefilled, Tokens
from transport.wire.sampling import Constraint, SamplingParams, StopRule
from transport.wire.token_ids import packed, to_wire
from worker.settings import PrefixCacheSettings

DEADLINE_S = 60.0


def slow_grammar() -> str:
    """About as much as a worker may be asked to compile."""
    letters = {f"l{n}": {"type": "string", "pattern": f"^[a-z]{{1,{n}}}$"} for n in range(5, 11)}
    item = {"type": "object", "properties": letters, "required": list(letters)}
    items = {f"item-{n}": item for n in range(400)}
    schema = {"type": "object", "properties": items, "required": list(items)}
    return LLMatcher.grammar_from_json_schema(schema)


class Site:
    """A colocated worker with a real engine; notes when each request's tokens came."""

    def __init__(self, engine: Engine) -> None:
        self.in_socket_s = 0.0
        self.times: dict[str, list[float]] = {"stream": [], "slow": []}
        self._woken = threading.Event()
        self.pool = make_worker(
            engine, self, "colocated", lookahead=1, prefix_cache=PrefixCacheSettings(enabled=False)
        )

    def send(self, message: Prefilled | Tokens | Failed) -> None:
        assert not isinstance(message, Failed), message
        for token in (message.token,) if isinstance(message, Prefilled) else message.tokens:
            self.times[token.request_id].append(time.perf_counter())

    def wake(self) -> None:
        self._woken.set()

    def ask(self, name: str, arrival: int, sampling: SamplingParams) -> None:
        prompt = to_wire(packed(range(3, 23)))
        self.pool.handle(Generate(name, 1, arrival, prompt, 20, sampling, StopRule(4_000)))

    def run_until(self, is_over: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not is_over():
            assert time.monotonic() < deadline
            wait_s = self.pool.wait_s()
            assert self._woken.wait(wait_s) or wait_s < 1.0, "slept through"
            self._woken.clear()
            self.pool.step()


def slow(engine: Engine) -> tuple[SamplingParams, list[float]]:
    """A request whose grammar no thread has compiled yet, and when that begins and ends."""
    between: list[float] = []
    prepare = engine.prepare

    def prepared(sampling: SamplingParams) -> Compiled | None:
        if (compiled := prepare(sampling)) is not None:
            between.append(time.perf_counter())
            compiled.add_done_callback(lambda _: between.append(time.perf_counter()))
        return compiled

    engine.prepare = prepared  # type: ignore[method-assign]
    return SamplingParams(temperature=0.0, constraint=Constraint(slow_grammar())), between


def test_a_stream_goes_on_while_another_ones_grammar_is_compiled() -> None:
    torch.set_num_threads(1)
    engine = load_engine(Path("models/tiny"), num_valid_ids=1_306, num_state_slots=4)
    site = Site(engine)
    sampling, between = slow(engine)
    site.ask("stream", 1, SamplingParams(temperature=0.0))
    site.run_until(lambda: len(site.times["stream"]) > 20)
    site.ask("slow", 2, sampling)
    site.run_until(lambda: len(site.times["slow"]) > 3)
    began, ended = between
    assert site.times["slow"][0] >= ended
    gaps = [b - a for a, b in itertools.pairwise(site.times["stream"]) if b > began]
    print(f"compiled in {ended - began:.3f} s; longest gap {max(gaps):.3f} s")
    assert max(gaps) < (ended - began) / 2
    meanwhile = [t for t in site.times["stream"] if began < t < ended]
    assert len(meanwhile) > 3, "tokens came meanwhile"


def test_a_worker_without_other_work_sleeps_until_the_grammar_is_compiled() -> None:
    torch.set_num_threads(1)
    engine = load_engine(Path("models/tiny"), num_valid_ids=1_306, num_state_slots=4)
    site = Site(engine)
    sampling, between = slow(engine)
    rounds = 0
    step = site.pool.step

    def counted() -> None:
        nonlocal rounds
        rounds += 1
        step()

    site.pool.step = counted  # type: ignore[method-assign]
    site.ask("slow", 1, sampling)
    site.run_until(lambda: bool(site.times["slow"]))
    assert site.times["slow"][0] >= between[1]
    assert rounds < 10
