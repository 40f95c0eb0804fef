"""Spread steps that verify drafts, of an engine as it runs on CUDA, in a group of one: the tokens
and states of local steps without drafts, whatever is aborted."""

import random
from collections.abc import Callable, Iterator, Sequence

import msgspec
import pytest
import torch

from engine import draft_graphs
from engine.batch import Binding, ForwardBatch, Row, SpreadPlan
from engine.config import EngineConfig
from engine.draft_graphs import DraftGraphs
from engine.kernels.triton_dot import INTERPRETED
from engine.runner import Engine
from engine.spread.engine_steps import EngineSpread
from engine.spread.memory import UNKNOWN_MEMBER
from engine.spread.shapes import shape_for
from engine.step import Step
from tests.kernels import cuda_path
from tests.kernels.spread_group import Memory
from tests.kernels.test_cuda_path_spread import on_the_cpu
from transport.wire.sampling import SamplingParams, StopRule

pytestmark = [
    pytest.mark.skipif(not INTERPRETED, reason="for Triton's interpreter"),
    pytest.mark.timeout(400),
]

PROMPTS = ((5, 6, 7, 8), tuple(range(40, 60)))
SETTINGS = (SamplingParams(temperature=0.0), SamplingParams(temperature=0.8, seed=4))
MAX_DRAFTS, NUM_TOKENS = 3, 7
POISON = float("nan")


class Graph:
    """Computes nothing before it is replayed: of these there are many."""

    def __init__(self, pool: object, forward: Callable[[], None]) -> None:
        self.replay = forward


class Sequences:
    """Two sequences, and what a lone engine gives for them: tokens, and the states behind all."""

    def __init__(self, engine: Engine) -> None:
        assert isinstance(engine.spread, EngineSpread)
        assert isinstance(engine._drafts, DraftGraphs)
        self.engine, self.spread, self.drafts = engine, engine.spread, engine._drafts
        self.draw, self.round = random.Random(5), 0
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

    @torch.inference_mode()
    def poison(self) -> None:
        """What is not pending is garbage."""
        for ring in self.drafts._rings:
            for slot, num in enumerate(ring.pending.tolist()):
                ring.inputs[slot, num:] = POISON
                ring.updates[slot, :, num:] = POISON

    def kept(self) -> list[object]:
        """Of each sequence from step to step, beside its length and what is pending."""
        tables = self.drafts._tables
        return [list(self.drafts._made), tables.drafts.tolist(), tables.next_token.tolist()]

    def lengths(self) -> list[int]:
        pairs = zip(PROMPTS, self.tokens, strict=True)
        return [len(prompt) + len(tokens) - 1 for prompt, tokens in pairs]

    def now(self) -> list[torch.Tensor]:
        return [state.clone() for state in (self.engine.cache.conv, self.engine.cache.recurrent)]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sequences]:
    folder = tmp_path_factory.mktemp("model")
    with pytest.MonkeyPatch.context() as patch:
        on_the_cpu(patch)
        patch.setattr(draft_graphs, "_captured", Graph)
        cuda_path.write_config(folder)
        settings = EngineConfig(
            folder, 2, 2, load_format="dummy", dtype="bfloat16", spread=True,
            max_drafts=MAX_DRAFTS,
        )  # fmt: skip
        yield Sequences(cuda_path.load(settings))


@pytest.fixture
def sequences(loaded: Sequences) -> Iterator[Sequences]:
    loaded.begin()
    yield loaded
    loaded.spread.leave()


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


def test_steps_that_wait_for_a_dead_member_change_nothing(sequences: Sequences) -> None:
    spread, engine = sequences.spread, sequences.engine
    sequences.take(engine.launch(sequences.batch([0, 1], 0, 2)), [0, 1])
    before, states = sequences.kept(), sequences.now()
    dead = Memory(torch.device("cpu"))
    dead.allocate(spread.export.size_bytes).zero_()
    other = msgspec.structs.replace(spread.export, handle=dead.handle)
    spread.join(4, 0, [spread.export, other], 0)
    # A sequence that only takes part in the step behind loses nothing either.
    batches = [sequences.batch(slots, 2, 1) for slots in ([0], [0, 1])]
    steps = [
        spread.launch(batch, SpreadPlan(4, 1 + i, 2, not i, 2)) for i, batch in enumerate(batches)
    ]
    for step in steps:
        result = step.result()
        assert (result.aborted, result.late) == (True, (1,))
    assert sequences.kept() == before
    assert sequences.drafts._tables.lengths.tolist() == sequences.lengths()
    for state, expected in zip(sequences.now(), states, strict=True):
        assert torch.equal(state, expected)
    spread.leave()
    sequences.take(engine.launch(sequences.batch([0, 1], 2, 0)), [0, 1])
    for own, truth in zip(sequences.tokens, sequences.truth, strict=True):
        assert own == truth[: len(own)]
