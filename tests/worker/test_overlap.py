"""Long prompts are computed beside decode steps, and the steps go on meanwhile."""

from types import SimpleNamespace

from prefill.limits import PrefillLimits, RoundLimits
from tests.simulation.fake_engine import expected_output
from tests.simulation.fake_overlap import OverlappingEngine
from tests.worker.made import make_worker
from transport.wire.layout import PoolSize
from transport.wire.messages import Generate, Prefilled, PromptLogprobs, Targets, Tokens
from transport.wire.sampling import SamplingParams, StopRule
from transport.wire.token_ids import packed, to_wire
from worker.settings import PrefixCacheSettings

BESIDE = 64
TARGETS = Targets(2.0, 0.05)


class Site:
    """A colocated worker whose device computes when the test or the worker asks."""

    def __init__(self, *, prefix_cache: bool = False) -> None:
        self.sent: list = []
        self.engine = OverlappingEngine(PoolSize(60, 8))
        session = SimpleNamespace(send=self.sent.append, in_socket_s=0.0, targets=TARGETS)
        self.worker = make_worker(
            self.engine, session, "colocated",
            limits=RoundLimits(PrefillLimits(128, 4), BESIDE), clock=lambda: 0.0,
            prefix_cache=PrefixCacheSettings(enabled=prefix_cache),
        )  # fmt: skip

    def ask(self, name: str, arrival: int, length: int, **sampling: int) -> tuple[int, ...]:
        prompt = tuple((arrival + i) % 64 for i in range(length))
        wire = to_wire(packed(prompt))
        what = SamplingParams(**sampling), StopRule(40)
        self.worker.handle(Generate(name, 1, arrival, wire, length, *what))
        return prompt

    def ids(self, name: str) -> list[int]:
        """The output of a request so far."""
        first = [m.token for m in self.sent if isinstance(m, Prefilled)]
        steps = [token for m in self.sent if isinstance(m, Tokens) for token in m.tokens]
        return [token.token_id for token in (*first, *steps) if token.request_id == name]


def running() -> Site:
    """A site with one sequence that is decoded."""
    site = Site()
    site.ask("first", 1, 9)
    site.worker.step()
    assert len(site.ids("first")) == 1
    return site


def test_steps_go_on_beside_a_long_prompt() -> None:
    site = running()
    site.ask("long", 2, BESIDE + 1)
    site.worker.step()
    assert site.worker.gauges().steps_share in site.engine.shares
    for round in range(2, 10):
        site.worker.step()
        assert len(site.ids("first")) == 1 + round, "a step each round"
    assert site.worker.gauges().steps_share == 0
    assert len(site.ids("long")) > 1


def test_a_short_prompt_is_computed_between_two_steps() -> None:
    site = running()
    site.ask("short", 2, BESIDE)
    site.worker.step()
    assert not site.engine.beside
    assert len(site.ids("short")) == 1


def test_so_is_one_that_is_short_behind_a_kept_prefix() -> None:
    site = Site(prefix_cache=True)
    site.ask("first", 1, 300)
    while not site.ids("first"):
        site.worker.step()
    site.ask("longer", 1 + 64, 320)  # begins with the same tokens
    site.ask("other", 99, 300)
    prompts = site.worker._room.prompts
    assert [prompts.num_left(prompt) for prompt in prompts.waiting] == [64, 300]
    prompts.end(list(prompts.waiting)[1])
    site.worker.step()
    assert not site.engine.beside
    assert len(site.ids("longer")) == 1
    site.ask("another", 99, 300)
    site.worker.step()
    assert site.engine.beside


def test_no_more_than_two_batches_are_under_way() -> None:
    site = running()
    site.engine.run_one = lambda: None  # type: ignore[method-assign]
    site.ask("long", 2, 6 * 128)
    begun = []
    overlapped = site.engine.overlapped
    site.engine.overlapped = lambda *what: begun.append(overlapped(*what)) or begun[-1]
    site.worker._launches.process = lambda behind: False  # type: ignore[method-assign]
    for _ in range(9):
        site.worker.step()
    assert len(begun) == 2
    assert all(batch.enqueued for batch in begun)


def test_late_prompts_get_the_whole_device_between_steps() -> None:
    site = running()
    shares = iter([2, 0, 0, 0])
    site.worker._room.shares.choose = lambda *_, **__: next(shares, 0)  # type: ignore
    site.ask("long", 2, 4 * BESIDE)
    site.worker.step()
    (batch,) = site.engine.beside
    site.engine.run_one = lambda: None  # type: ignore[method-assign]
    site.worker._launches.process = lambda behind: False  # type: ignore[method-assign]
    site.worker.step()
    assert site.engine.beside == [batch], "nothing begins before it is done"
    del site.engine.run_one, site.worker._launches.process
    while not site.ids("long"):
        site.worker.step()
    assert not site.engine.beside
    assert batch.done


def test_without_a_step_to_take_prompts_wait_for_the_whole_device() -> None:
    site = running()
    site.ask("long", 2, 3 * 128)
    site.worker.step()
    (batch,) = site.engine.beside
    for sequence in list(site.worker._room.sequences.running):
        site.worker._room.end(sequence)
    launched = []
    launch = site.engine.launch
    site.engine.launch = lambda batch: launched.append(batch) or launch(batch)  # type: ignore
    site.worker.step()
    assert batch.done, "it is waited for"
    assert not launched
    site.worker.step()
    assert len(launched) == 1


def test_a_scored_prompt_waits_for_overlapped_ones() -> None:
    site = running()
    site.ask("long", 2, 128)
    site.worker.step()
    assert site.engine.beside
    site.ask("scored", 3, 128, prompt_logprobs=0)
    site.worker.step()
    assert not site.engine.beside
    assert any(isinstance(message, PromptLogprobs) for message in site.sent)


def test_the_worker_is_busy_until_the_last_batch_is_processed() -> None:
    site = running()
    site.ask("long", 2, 128)
    site.worker.step()
    for sequence in site.worker._room.active():
        site.worker._room.end(sequence)
    assert not site.worker.empty
    assert site.worker.wait_s() == 0.0
    site.worker.step()
    assert site.worker.empty


def test_texts_are_those_of_a_lone_engine() -> None:
    site = running()
    prompts = {f"r{i}": site.ask(f"r{i}", 2 + i, 40 + 60 * i) for i in range(4)}
    for _ in range(200):
        site.worker.step()
    for name, prompt in prompts.items():
        assert tuple(site.ids(name)) == tuple(expected_output(prompt, StopRule(40)))
    assert site.worker.empty
