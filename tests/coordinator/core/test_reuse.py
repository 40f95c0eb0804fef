"""Prompts go where the least is to be computed, and what a peer keeps of them is pulled."""

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.contract import SequenceRequest
from coordinator.core.placement.choice import choose_generate, choose_prefill
from coordinator.core.placement.reuse import LONG_SHARED_LEN, NOTHING, pull_cost, reuses_of
from coordinator.core.request import Request, State
from coordinator.core.settings import PlacementLimits
from coordinator.core.workers.registry import Registry
from coordinator.core.workers.worker import Worker
from tests.coordinator.kept import PAGE, kept
from transport.wire.layout import CacheLayout, PoolSize
from transport.wire.memory_export import MemoryExport
from transport.wire.messages import Hello, Role
from transport.wire.offers import PrefixesChanged
from transport.wire.sampling import SamplingParams, StopRule
from transport.wire.token_ids import packed

LAYOUT = CacheLayout("float32", PAGE, 1, 1, 1, 1, 1, 1, 1, 1, 1)
LIMITS = PlacementLimits()
SYSTEM = [1] * 2_000


class Fleet:
    """Workers w0, w1, … of one role that keep prefixes and can pull them from each other."""

    def __init__(self, num_workers: int, role: Role = "prefill", *, keeping: bool = True) -> None:
        self.role = role
        self.registry = Registry()
        self._numbers = count(1)
        for i in range(num_workers):
            export = MemoryExport("shm", f"w{i}", 1, LAYOUT, PoolSize(100_000, 64))
            hello = Hello(f"w{i}", role, "m", "cpu", 1, 200_000, 64, export)
            self.registry.add(hello, 0.0).keeps_prefixes = keeping
        self.workers = self.registry.all()
        for exporter in self.workers:
            for puller in self.workers:
                if exporter is not puller:
                    self.tested(exporter.instance, puller.instance)

    def tested(self, exporter: str, puller: str, problem: str = "") -> None:
        self.registry.prefix_pairs.report(exporter, puller, problem, 0.0)

    def keep(
        self, instance: str, ids: list[int], *, on_host: bool = False, has_states: bool = True
    ) -> None:
        prefix = kept(ids, instance, on_host=on_host, has_states=has_states)
        message = PrefixesChanged((prefix,))
        self.registry.kept.change(instance, message)

    def request(self, ids: list[int], sampling: SamplingParams | None = None) -> Request:
        number = next(self._numbers)
        spec = SequenceRequest(
            f"r{number}", packed(ids), sampling or SamplingParams(), StopRule(100)
        )
        return Request(spec, number)

    def choose(self, request: Request) -> Worker | None:
        choose = choose_prefill if self.role == "prefill" else choose_generate
        place = choose(self.workers, request, LIMITS, reuses_of(request, self.registry))
        return None if place is None else place.worker

    def place(self, ids: list[int]) -> str:
        """As the dispatcher does."""
        request = self.request(ids)
        worker = self.choose(request)
        assert worker is not None
        self.put(request, worker)
        return worker.instance

    def put(self, request: Request, worker: Worker) -> None:
        request.state = State.PREFILLING
        request.num_expected = reuses_of(request, self.registry)(worker).num_tokens
        keys, num_pages = request.prefix_keys(worker.hello), request.num_expected // PAGE
        worker.load.pending_prefixes.add(request.request_id, keys, num_pages)
        worker.load.add(request)
        worker.load.last_placed = next(self._numbers)

    def reuse(self, instance: str, ids: list[int]):
        return reuses_of(self.request(ids), self.registry)(self.registry.require(instance))


def test_without_kept_prefixes_nothing_is_looked_up() -> None:
    fleet = Fleet(2, keeping=False)
    request = fleet.request(SYSTEM)
    assert reuses_of(request, fleet.registry)(fleet.workers[0]) == NOTHING
    assert request._keys is None


def test_the_log_probabilities_of_a_prompt_need_all_of_it_computed() -> None:
    fleet = Fleet(1)
    fleet.keep("w0", SYSTEM)
    request = fleet.request([*SYSTEM, 5], SamplingParams(prompt_logprobs=1))
    assert reuses_of(request, fleet.registry)(fleet.workers[0]) == NOTHING


def test_one_token_at_least_is_computed() -> None:
    fleet = Fleet(1)
    fleet.keep("w0", SYSTEM[:1_600])
    fleet.keep("w0", SYSTEM)
    assert fleet.reuse("w0", SYSTEM).num_tokens == 1_600
    assert fleet.reuse("w0", [*SYSTEM, 5]).num_tokens == 2_000


def test_a_peers_prefix_is_pulled_where_it_is_longer_by_more_than_the_pull_costs() -> None:
    fleet, prompt = Fleet(2), [*SYSTEM, 5]
    fleet.keep("w1", SYSTEM)
    reuse = fleet.reuse("w0", prompt)
    assert (reuse.num_tokens, reuse.cost_len) == (2_000, pull_cost(2_000, 0))
    assert reuse.prefix is not None
    assert (reuse.prefix.instance, reuse.prefix.num_tokens) == ("w1", 2_000)
    assert fleet.reuse("w1", prompt).prefix is None, "its own"
    fleet.keep("w0", SYSTEM[:1_900])
    reuse = fleet.reuse("w0", prompt)
    assert reuse.prefix is not None
    assert pull_cost(2_000, 1_900) == reuse.cost_len < 100
    fleet.keep("w0", SYSTEM[:1_936])
    reuse = fleet.reuse("w0", prompt)
    assert (reuse.num_tokens, reuse.prefix) == (1_936, None)


def test_only_what_can_be_read_is_pulled() -> None:
    fleet, prompt = Fleet(3), [*SYSTEM, 5]
    fleet.keep("w1", SYSTEM, on_host=True)
    assert fleet.reuse("w0", prompt) == NOTHING, "in host memory"
    assert fleet.reuse("w1", prompt).num_tokens == 2_000, "which the worker itself reads"
    fleet.keep("w2", SYSTEM)
    assert fleet.reuse("w0", prompt).prefix is not None
    fleet.tested("w2", "w0", "wrong bytes")
    assert fleet.reuse("w0", prompt) == NOTHING, "a broken pair"
    fleet.registry.prefix_pairs.forget_pair("w2", "w0")
    assert fleet.reuse("w0", prompt) == NOTHING, "an untested one"
    fleet.tested("w2", "w0")
    fleet.registry.require("w2").breaker.fault(0.0, 0.0, partner="", num_partners=0, may_open=True)
    assert fleet.reuse("w0", prompt).prefix is not None
    for at in (1.0, 2.0, 3.0):
        fleet.registry.require("w2").breaker.fault(
            at, at, partner="", num_partners=0, may_open=True
        )
    assert fleet.reuse("w0", prompt) == NOTHING, "its requests end in faults"
    fleet.registry.remove("w1")
    fleet.registry.remove("w2")
    assert len(fleet.registry.kept) == 0


def test_without_states_any_pages_of_a_prefix_are_reused_and_pulled() -> None:
    fleet, prompt = Fleet(2), [*SYSTEM[:1_500], 5, *SYSTEM]
    fleet.keep("w1", SYSTEM)
    assert fleet.reuse("w1", prompt) == NOTHING
    fleet.keep("w1", SYSTEM, has_states=False)
    assert fleet.reuse("w1", prompt).num_tokens == 1_488
    pulled = fleet.reuse("w0", prompt)
    assert (pulled.num_tokens, pulled.cost_len) == (1_488, pull_cost(1_488, 0))
    assert pulled.prefix is not None
    assert pulled.prefix.num_tokens == 1_488
    assert len(pulled.prefix.block_table) == 1_488 // PAGE


def test_after_nan_and_in_quarantine_a_request_reuses_nothing() -> None:
    fleet = Fleet(1)
    fleet.keep("w0", SYSTEM)
    for change in ({"failed_with": {"not_finite"}}, {"quarantined": True}):
        request = fleet.request([*SYSTEM, 5])
        for name, value in change.items():
            setattr(request, name, value)
        assert reuses_of(request, fleet.registry)(fleet.workers[0]) == NOTHING
        assert request.as_prefill().salt not in ("", fleet.request(SYSTEM).as_prefill().salt)


@pytest.mark.parametrize("role", ["prefill", "colocated"])
def test_a_session_stays_where_its_prefix_is_until_the_work_there_outweighs_it(role: Role) -> None:
    fleet = Fleet(2, role)
    fleet.keep("w0", SYSTEM)
    assert {fleet.choose(fleet.request([*SYSTEM, n])).instance for n in range(4)} == {"w0"}
    fleet.put(fleet.request([3] * 100), fleet.workers[0])
    if role == "prefill":
        assert fleet.choose(fleet.request([*SYSTEM, 5])).instance == "w0", "a pull takes longer"
    fleet.put(fleet.request([4] * 300), fleet.workers[0])
    request = fleet.request([*SYSTEM, 5])
    assert fleet.choose(request).instance == "w1"
    assert reuses_of(request, fleet.registry)(fleet.registry.require("w1")).prefix is not None


def test_requests_that_begin_alike_go_to_one_worker_while_it_pays() -> None:
    for role in ("prefill", "colocated"):
        fleet = Fleet(2, role)
        assert [fleet.place([*SYSTEM, n]) for n in range(2)] == ["w0", "w0"]
        fleet = Fleet(2, role)
        places = [fleet.place([*SYSTEM, *[n] * 500]) for n in range(2, 30)]
        assert set(places) == {"w0", "w1"}, "not queued for"
        assert sorted(w.load.tokens_ahead for w in fleet.workers)[0] > 4_000
        short = SYSTEM[: LONG_SHARED_LEN - PAGE]
        fleet = Fleet(2, role)
        assert [fleet.place([*short, n]) for n in range(2)] == ["w0", "w1"]


def test_what_a_worker_pulls_is_not_coming_there() -> None:
    fleet = Fleet(2)
    fleet.keep("w0", SYSTEM)
    fleet.put(fleet.request([*SYSTEM, 5]), fleet.registry.require("w1"))
    reuse = fleet.reuse("w1", [*SYSTEM, 6])
    assert reuse.prefix is not None, "no state is kept behind what was pulled"
    assert (reuse.num_tokens, reuse.cost_len) == (2_000, pull_cost(2_000, 0))


def test_beside_what_is_coming_a_peers_prefix_is_named_too() -> None:
    fleet, longer = Fleet(2), [*SYSTEM, *[2] * 1_000]
    fleet.put(fleet.request(longer), fleet.registry.require("w1"))
    fleet.keep("w0", SYSTEM)
    reuse = fleet.reuse("w1", [*longer, 5])
    assert (reuse.num_tokens, reuse.cost_len) == (2_992, 0), "whole pages"
    assert reuse.prefix is not None
    assert reuse.prefix.num_tokens == 2_000


PROMPTS = st.integers(1, 200).map(lambda n: [1] * n) | st.lists(
    st.integers(0, 1), min_size=1, max_size=60
)


@given(
    role=st.sampled_from(["prefill", "colocated"]),
    places=st.lists(st.tuples(st.integers(0, 2), PROMPTS), max_size=12),
    prompt=PROMPTS,
)
def test_where_nothing_is_kept_the_choice_is_as_without_a_prefix_cache(
    role, places, prompt
) -> None:
    fleet = Fleet(3, role)
    for at, ids in places:
        fleet.put(fleet.request(ids), fleet.workers[at])
    request = fleet.request(prompt)
    choose = choose_prefill if role == "prefill" else choose_generate
    place = choose(fleet.workers, request, LIMITS)
    assert place is not None
    assert fleet.choose(request) is place.worker
    load = {
        "prefill": lambda w: (w.load.tokens_ahead, w.load.last_placed),
        "colocated": lambda w: (
            len(w.load.requests), w.load.tokens_ahead, -w.load.free_pages, w.load.last_placed,
        ),
    }[role]  # fmt: skip
    assert fleet.choose(request) is min(fleet.workers, key=load)


@given(
    held=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4_000), st.booleans()), max_size=6),
    broken=st.sets(st.tuples(st.integers(0, 2), st.integers(0, 2))),
    length=st.integers(1, 4_001),
)
def test_what_is_reused_is_kept_and_readable_and_worth_its_cost(held, broken, length) -> None:
    fleet = Fleet(3)
    for at, num_tokens, on_host in held:
        fleet.keep(f"w{at}", [1] * num_tokens, on_host=on_host)
    for exporter, puller in broken:
        fleet.tested(f"w{exporter}", f"w{puller}", "wrong bytes")
    request = fleet.request([1] * length)
    now = {(at, num): on_host for at, num, on_host in held}  # the last one counts
    for puller, worker in enumerate(fleet.workers):
        reuse = reuses_of(request, fleet.registry)(worker)
        own = max((n for (at, n) in now if at == puller and n < length), default=0)
        assert own <= reuse.num_tokens < length
        if reuse.prefix is None:
            assert (reuse.num_tokens, reuse.cost_len) == (own, 0)
        else:
            exporter = int(reuse.prefix.instance[1:])
            assert reuse.prefix.num_tokens == reuse.num_tokens
            assert now[exporter, reuse.num_tokens] is False
            assert (exporter, puller) not in broken
            assert exporter != puller
            assert reuse.saved_len > own
