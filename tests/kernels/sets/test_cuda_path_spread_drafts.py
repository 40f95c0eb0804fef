"""Spread steps that verify drafts, of engines as they run on CUDA: the tokens and states of local
steps without drafts, whatever is aborted.

In a group of two each member runs in a thread, one at a time: where a kernel would wait for what
the other one stores, the other one goes on."""

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from engine.batch import Binding, ForwardBatch, Row, SpreadPlan
from engine.config import EngineConfig
from engine.graphs import draft_graphs
from engine.graphs.draft_graphs import DraftGraphs
from engine.kernels.triton_dot import INTERPRETED
from engine.runner import Engine
from engine.spread import kernels
from engine.spread.engine_steps import EngineSpread
from engine.spread.member_steps import DraftSteps
from engine.spread.memory import (
    EMPTY,
    FLAG,
    HEADER_BYTES,
    NUM_DECODING,
    UNKNOWN_MEMBER,
    Exchange,
)
from engine.spread.outcome import SpreadOutcome
from engine.spread.shapes import draft_shapes, shape_for
from engine.spread.triton_collect import Collected
from engine.spread.triton_take_up import Returned
from engine.step import Step
from tests.kernels.sets import cuda_path
from tests.kernels.sets.test_cuda_path_spread import THOUGHT, on_the_cpu
from transport.wire.sampling import SamplingParams, StopRule
from transport.wire.spread import MAX_MEMBERS

pytestmark = [
    pytest.mark.skipif(not INTERPRETED, reason="for Triton's interpreter"),
    pytest.mark.timeout(400),
]

PROMPTS = ((5, 6, 7, 8), tuple(range(40, 60)))
SETTINGS = (
    SamplingParams(temperature=0.0, constraint=THOUGHT),
    SamplingParams(temperature=0.8, seed=4, presence_penalty=0.9, frequency_penalty=0.5),
)
MAX_DRAFTS, NUM_TOKENS = 3, 7
POISON = float("nan")


class Graph:
    """Computes nothing before it is replayed: of these there are many."""

    def __init__(self, pool: object, forward: Callable[[], None]) -> None:
        self.replay = forward


class Sequences:
    """Two sequences, and what a lone engine gives for them: tokens, and the states behind all."""

    def __init__(self, engine: Engine, truth: "Sequences | None" = None) -> None:
        assert isinstance(engine.spread, EngineSpread)
        assert isinstance(engine._drafts, DraftGraphs)
        self.engine, self.spread, self.drafts = engine, engine.spread, engine._drafts
        self.draw, self.round = random.Random(5), 0
        if truth is not None:
            self.truth, self.states = truth.truth, truth.states
            return
        self.truth: list[list[int]] = []
        self.begin()
        for _ in range(NUM_TOKENS):
            self.take(engine.launch(self.batch([0, 1], 0, 0)), [0, 1])
        self.truth, self.states = self.tokens, self.now()

    def begin(self) -> None:
        """All sequences are at their first tokens; no ring has anything."""
        engine = self.engine
        for slot, prompt in enumerate(PROMPTS):
            engine.bind(Binding(slot, prompt, (), SETTINGS[slot], StopRule(99)))
        rows = tuple(Row(slot, (slot,), 0, prompt) for slot, prompt in enumerate(PROMPTS))
        self.tokens: list[list[int]] = [[], []]
        self.take(engine.launch(ForwardBatch(rows)), [0, 1])
        with torch.inference_mode():
            for ring in self.drafts._rings:
                ring.inputs.fill_(POISON)
                ring.updates.fill_(POISON)

    def batch(self, slots: Sequence[int], num_drafts: int, num_next: int) -> ForwardBatch:
        left = [NUM_TOKENS - len(self.tokens[slot]) for slot in slots]
        rows = (
            Row(
                slot, (slot,), self.lengths()[slot], None,
                num_drafts=max(0, min(num_drafts, num - 1)),
            )
            for slot, num in zip(slots, left, strict=True)
        )  # fmt: skip
        return ForwardBatch(tuple(rows), num_next)

    def plan(self, batch: ForwardBatch, *, first: bool) -> SpreadPlan:
        self.round += 1
        num_drafts = max((row.num_drafts for row in batch.rows), default=0)
        shape = shape_for(self.spread.shapes, len(batch.rows), num_drafts)
        return SpreadPlan(3, self.round, shape.bucket, first, shape.num_drafts)

    def launch(self, batch: ForwardBatch, *, first: bool = False) -> Step:
        return self.spread.launch(batch, self.plan(batch, first=first))

    def take(self, step: Step, slots: Sequence[int]) -> int:
        """Take in a step's tokens; returns how many drafts were accepted."""
        sampled = step.result().sampled
        for slot, outcomes in zip(slots, sampled, strict=True):
            self.tokens[slot] += [outcome.token_id or 0 for outcome in outcomes]
        return sum(len(outcomes) - 1 for outcomes in sampled)

    @torch.inference_mode()
    def guess(self) -> None:
        """Let the drafts be right for a while: those of a random model never are."""
        for slot, (own, truth) in enumerate(zip(self.tokens, self.truth, strict=True)):
            num = self.draw.randint(0, MAX_DRAFTS)
            following = [*truth[len(own) :], 0, 0, 0][:MAX_DRAFTS]
            for place in range(num):
                self.drafts._tables.drafts[place, slot] = following[place]
            if on_host := self.drafts._choices._on_host.get(slot):
                on_host.ids[:num] = torch.tensor(following[:num])

    @torch.inference_mode()
    def poison(self) -> None:
        """What is not pending is garbage."""
        for ring in self.drafts._rings:
            for slot, num in enumerate(ring.pending.tolist()):
                ring.inputs[slot, num:] = POISON
                ring.updates[slot, :, num:] = POISON

    def kept(self) -> list[object]:
        """Of each sequence from step to step, beside its length and what is pending."""
        tables, counts = self.drafts._tables, self.engine._sampler.tables.counts.values
        assert counts is not None
        tensors = tables.drafts, tables.next_token, counts
        return [list(self.drafts._made), *(tensor.tolist() for tensor in tensors)]

    def lengths(self) -> list[int]:
        pairs = zip(PROMPTS, self.tokens, strict=True)
        return [len(prompt) + len(tokens) - 1 for prompt, tokens in pairs]

    def now(self) -> list[torch.Tensor]:
        return [state.clone() for state in (self.engine.cache.conv, self.engine.cache.recurrent)]


class Turns:
    """Of members in threads: one has its turn until it would wait."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._turn = threading.Condition()
        plain_collect, plain_take_up = kernels.collect, kernels.take_up

        def collect(rows: Collected, exchange: Exchange, layer: int) -> None:
            self._until(lambda: _are_there(exchange, rows.rows_each, layer))
            plain_collect(rows, exchange, layer)

        def take_up(hidden: torch.Tensor, returned: Returned, *rest: Any) -> Any:
            live = returned.live >= 0
            results = returned.exchange.returned[: len(live)]
            self._until(lambda: not results[live].eq(EMPTY).any())
            return plain_take_up(hidden, returned, *rest)

        patch.setattr(kernels, "collect", collect)
        patch.setattr(kernels, "take_up", take_up)

    def _until(self, ready: Callable[[], bool]) -> None:
        self._turn.notify_all()
        assert self._turn.wait_for(ready, 100.0), "the other member has stored nothing"

    def together(self, *members: Callable[[], Any]) -> list[Any]:
        def run(member: Callable[[], Any]) -> Any:
            with self._turn:
                found = member()
                self._turn.notify_all()
                return found

        with ThreadPoolExecutor(len(members)) as threads:
            return list(threads.map(run, members))


def _are_there(exchange: Exchange, rows_each: int, layer: int) -> bool:
    """Whether the ids of all members' rows are in the inbox, and with them all else: a member that
    has its turn pushes whole rows."""
    layout, flag = exchange.layout, int(exchange.control[FLAG]) + layer
    inbox = exchange._lane[HEADER_BYTES:][: 2 * MAX_MEMBERS * layout.member_bytes]
    num_members = int(exchange.control[NUM_DECODING])
    words = inbox.view(torch.int32).view(2, MAX_MEMBERS, -1, 4)[flag & 1, :num_members]
    return bool(words[:, : rows_each * layout.id_words, 1].eq(flag).all())


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sequences]:
    folder = tmp_path_factory.mktemp("model")
    with pytest.MonkeyPatch.context() as patch:
        on_the_cpu(patch)
        patch.setattr(draft_graphs, "_captured", Graph)
        cuda_path.widen_tiles(patch)
        cuda_path.write_config(folder, hidden_size=256)
        settings = EngineConfig(
            folder, 2, 2, load_format="dummy", dtype="bfloat16", spread=True,
            max_drafts=MAX_DRAFTS, decode_buckets=(2,), group_sizes=(2,),
        )  # fmt: skip
        yield Sequences(cuda_path.load(settings))


@pytest.fixture
def sequences(loaded: Sequences) -> Iterator[Sequences]:
    loaded.begin()
    yield loaded
    loaded.spread.leave()


@pytest.mark.parametrize(("num_rows", "num_next"), [(64, 3), (65, 2), (128, 1), (129, 0)])
def test_no_drafts_are_made_for_which_the_next_step_has_no_room(
    num_rows: int, num_next: int
) -> None:
    graphs, shapes = Mock(DraftGraphs), draft_shapes(MAX_DRAFTS)
    rows = tuple(Row(slot, (slot,), 8, None, num_drafts=1) for slot in range(num_rows))
    settle = DraftSteps(graphs, shapes).launch(2, shapes[-1], ForwardBatch(rows, MAX_DRAFTS))
    settle(SpreadOutcome.of(torch.zeros(9, dtype=torch.int32)))
    assert graphs.settle.call_args.args[1] == num_next


def test_any_order_of_spread_aborted_and_local_steps_gives_the_same_tokens(
    sequences: Sequences,
) -> None:
    spread, engine, draw = sequences.spread, sequences.engine, sequences.draw
    spread.join(3, 0, [spread.export], 0)
    first, num_accepted = True, 0
    kinds = ["aborted", "spread", "local", "aborted", "spread"]
    while running := [s for s in (0, 1) if len(sequences.tokens[s]) < NUM_TOKENS]:
        kind = kinds.pop(0) if kinds else draw.choice(["spread", "local"])
        sequences.guess()
        batch = sequences.batch(running, draw.choice([1, 2, 3]), draw.choice([1, 3, 3]))
        if kind == "aborted":
            before = sequences.kept()
            if first:
                spread.steps.exchange.reset()
            spread.steps.exchange.header.fill_(UNKNOWN_MEMBER)
            steps = [sequences.launch(batch) for _ in range(draw.randint(1, 2))]
            assert all(step.result().aborted for step in steps)
            assert sequences.kept() == before
            assert sequences.drafts._tables.lengths.tolist() == sequences.lengths()
            assert not sequences.drafts._tables.pending.any()
            first = True
        elif kind == "spread":
            num_accepted += sequences.take(sequences.launch(batch, first=first), running)
            first = False
        else:
            num_accepted += sequences.take(engine.launch(batch), running)
        sequences.poison()
    assert sequences.tokens == [own[:NUM_TOKENS] for own in sequences.truth]
    assert num_accepted > 3
    sequences.take(engine.launch(sequences.batch([0, 1], 0, 0)), [0, 1])
    for state, expected in zip(sequences.now(), sequences.states, strict=True):
        assert torch.equal(state, expected)


def test_two_members_verify_the_drafts_of_their_own_sequences(
    sequences: Sequences, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One has two sequences, the other one the second of them, then none; then it is gone."""
    turns = Turns(monkeypatch)
    other = Sequences(cuda_path.load(sequences.engine.config), sequences)
    other.begin()
    members, exports = (sequences, other), [sequences.spread.export, other.spread.export]
    for place, (each, slots) in enumerate(zip(members, ([0, 1], [1]), strict=True)):
        each.spread.join(6, place, exports, 0)
        each.take(each.engine.launch(each.batch(slots, 0, 3 - 2 * place)), slots)
        each.guess()
    num_accepted = 0
    for number, slots in ((1, [1]), (2, list[int]())):
        shape = shape_for(sequences.spread.shapes, 2, 3 - 2 * (number == 2))
        plan = SpreadPlan(6, number, shape.bucket, number == 1, shape.num_drafts)
        batches = [sequences.batch([0, 1], 3, 1), other.batch(slots, 1, 0)]
        steps = turns.together(
            *(
                partial(each.spread.launch, batch, plan)
                for each, batch in zip(members, batches, strict=True)
            )
        )
        num_accepted += sequences.take(steps[0], [0, 1]) + other.take(steps[1], slots)
        for each in members:
            each.poison()
    assert num_accepted > 1
    monkeypatch.undo()  # from now on a kernel that would wait gives up
    before = sequences.kept()
    # A sequence that only takes part in the step behind loses nothing either.
    batches = [sequences.batch(slots, 1, 2) for slots in ([0], [0, 1])]
    for step in [
        sequences.spread.launch(batch, replace(plan, round=3 + i))
        for i, batch in enumerate(batches)
    ]:
        result = step.result()
        assert (result.aborted, result.late) == (True, (1,))
    assert sequences.kept() == before
    assert sequences.drafts._tables.lengths.tolist() == sequences.lengths()
    other.spread.leave()
    for each, slots in zip(members, ([0, 1], [1]), strict=True):
        each.take(each.engine.launch(each.batch(slots, 1, 0)), slots)
        for slot in slots:
            assert each.tokens[slot] == each.truth[slot][: len(each.tokens[slot])]
