"""Constrained sequences get only tokens that their grammar allows, one phase after the other."""

import json
from concurrent.futures import Future
from pathlib import Path

import pytest
import torch
from llguidance import LLMatcher

from engine.batch import Binding
from engine.sampling.constraints import ConstrainedSequence
from engine.sampling.grammars import Compiled, Grammars
from engine.sampling.sampler import Sampler
from engine.spread.outcome import SettledDraw, SpreadOutcome
from engine.step import SampleRow
from transport.eos_ids import eos_ids
from transport.wire.sampling import Constraint, SamplingParams, StopRule

TINY = Path("models/tiny")
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "name": {"type": "string", "maxLength": 12}},
    "required": ["n", "name"],
    "additionalProperties": False,
}
GRAMMAR = LLMatcher.grammar_from_json_schema(SCHEMA)
CPU = torch.device("cpu")
NUM_IDS = 1_306


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars(TINY, NUM_IDS, eos_ids(TINY))


def run(
    sampler: Sampler, grammars: Grammars, params: list[SamplingParams], num: int, seed: int = 0,
    output: tuple[int, ...] = (),
) -> list[list[int]]:  # fmt: skip
    """``num`` steps over random logits; every row's tokens, from ``output`` on."""
    generator = torch.Generator().manual_seed(seed)
    found = [list(output) for _ in params]
    for slot, one in enumerate(params):
        sampler.bind(Binding(slot, (1, 2), output, one, StopRule(999)))
    slots = torch.arange(len(params))
    for step in range(len(output), num):
        logits = torch.randn(len(params), NUM_IDS, generator=generator) * 4
        rows = [SampleRow(slot, 2 + step) for slot in range(len(params))]
        positions = torch.full((len(params),), 2 + step)
        for row, sampled in enumerate(sampler.sample(logits, slots, positions, rows).to_host()):
            assert sampled.token_id is not None, sampled.error
            found[row].append(sampled.token_id)
    return found


def text_of(grammars: Grammars, ids: list[int]) -> str:
    return grammars.tokenizer.decode_str(ids[: end_of(grammars, ids)])


def end_of(grammars: Grammars, ids: list[int]) -> int:
    """How many ids come before the first that ends a sequence."""
    return next((i for i, token_id in enumerate(ids) if token_id in grammars.eos_ids), len(ids))


def test_random_logits_give_json_of_the_schema(grammars: Grammars) -> None:
    params = [
        SamplingParams(temperature=1.5, seed=seed, constraint=Constraint(GRAMMAR))
        for seed in range(8)
    ]
    for ids in run(Sampler(8, NUM_IDS, CPU, grammars=grammars), grammars, params, 120):
        assert end_of(grammars, ids) < len(ids)
        found = json.loads(text_of(grammars, ids))
        assert set(found) == {"n", "name"}
        assert isinstance(found["n"], int)
        assert len(found["name"]) <= 12


def test_other_rows_get_the_tokens_that_they_get_alone(grammars: Grammars) -> None:
    free = SamplingParams(temperature=1.0, seed=5)
    bound = SamplingParams(temperature=1.0, seed=6, constraint=Constraint(GRAMMAR))
    new = lambda: Sampler(2, NUM_IDS, CPU, grammars=grammars)  # noqa: E731
    both = run(new(), grammars, [free, bound], 20)
    neither = run(new(), grammars, [free, free], 20)
    assert both[0] == neither[0]
    assert both[1] != neither[1]


def test_tokens_of_steps_that_were_aborted_count_for_nothing(grammars: Grammars) -> None:
    """Of a grammar, and of penalties."""
    params = [
        SamplingParams(temperature=0.0, constraint=Constraint(GRAMMAR)),
        SamplingParams(temperature=1.0, seed=3, repetition_penalty=1.5, presence_penalty=2.0),
    ]
    sampler = Sampler(2, NUM_IDS, CPU, grammars=grammars)
    truth = run(sampler, grammars, params, 12, seed=1)
    for slot, one in enumerate(params):
        sampler.bind(Binding(slot, (1, 2), (), one, StopRule(999)))
    generator, slots = torch.Generator().manual_seed(1), torch.arange(2)
    for step in range(12):
        logits = torch.randn(2, NUM_IDS, generator=generator) * 4
        rows = [SampleRow(slot, 2 + step) for slot in range(2)]
        # An aborted step gives garbage, and one behind it too.
        for number, ids in ((3, logits.flip(1)), (3, logits.roll(1)), (0, logits)):
            outcome = SpreadOutcome.of(torch.tensor([number] + 63 * [0], dtype=torch.int32))
            draw = sampler.sample(ids, slots, torch.full((2,), 2 + step), rows, held=True)
            num_out = (outcome.aborted == 0).long().expand(2)
            sampler.note_output(rows, slots, draw.ids, num_out, SettledDraw(draw, outcome))
        assert [sampled.token_id for sampled in draw.to_host()] == [own[step] for own in truth]


def test_a_resumed_sequence_goes_on_where_it_was(grammars: Grammars) -> None:
    params = [SamplingParams(temperature=0.0, constraint=Constraint(GRAMMAR))]
    whole = run(Sampler(1, NUM_IDS, CPU, grammars=grammars), grammars, params, 30)
    resumed = Sampler(1, NUM_IDS, CPU, grammars=grammars)
    ids = run(resumed, grammars, params, 40, seed=3, output=tuple(whole[0][:9]))[0]
    assert ids[:9] == whole[0][:9]
    matcher = LLMatcher(grammars.tokenizer, GRAMMAR)
    end = end_of(grammars, ids)
    assert matcher.validate_tokens(ids[:end]) == end


def test_a_thought_is_free_until_it_closes_and_its_budget_closes_it(grammars: Grammars) -> None:
    constraint = Constraint(
        "", thought_end=9, thought_budget=4, closing_ids=(8, 9), answer_ids=(7,)
    )
    sequence = ConstrainedSequence(constraint)
    for token_id in (1, 2, 3):
        assert sequence.free
        sequence.consume(token_id)
    sequence.consume(4)
    for token_id in (8, 9, 7):
        assert not sequence.free
        assert sequence.only(grammars.eos_ids) == (token_id,)
        sequence.consume(token_id)
    assert sequence.free, "an answer without a grammar"


def test_a_thought_that_closes_itself_is_followed_by_what_stands_before_the_answer() -> None:
    sequence = ConstrainedSequence(Constraint("", thought_end=9, answer_ids=(7,)))
    sequence.consume(1)
    sequence.consume(9)
    assert sequence.only(()) == (7,)


def test_a_budget_of_nothing_closes_the_thought_at_once() -> None:
    constraint = Constraint("", thought_end=9, thought_budget=0, closing_ids=(9,))
    assert ConstrainedSequence(constraint).only(()) == (9,)


def test_a_token_outside_the_grammar_ends_the_sequence_with_a_reason(grammars: Grammars) -> None:
    params = SamplingParams(constraint=Constraint(GRAMMAR))
    sampler = Sampler(1, NUM_IDS, CPU, grammars=grammars)
    sampler.bind(Binding(0, (1,), (grammars.tokenizer.tokenize_str("x")[0],), params, StopRule(9)))
    logits, at = torch.zeros(1, NUM_IDS), torch.tensor([2])
    (sampled,) = sampler.sample(logits, torch.tensor([0]), at, [SampleRow(0, 2)]).to_host()
    assert sampled.token_id is None
    assert sampled.error


class Panic(BaseException):
    """What a panic of llguidance is in Python: no Exception."""


@pytest.mark.parametrize("failure", [ValueError("too deep"), Panic("too deep")])
def test_a_compilation_that_raises_ends_its_own_sequence(
    grammars: Grammars, failure: BaseException
) -> None:
    broken: Compiled = Future()
    broken.set_exception(failure)
    params = [SamplingParams(constraint=Constraint(GRAMMAR)), SamplingParams()]
    sampler = Sampler(2, NUM_IDS, CPU, grammars=grammars)
    sampler.bind(Binding(0, (1,), (), params[0], StopRule(9), broken))
    sampler.bind(Binding(1, (1,), (), params[1], StopRule(9)))
    rows, slots = [SampleRow(0, 1), SampleRow(1, 1)], torch.tensor([0, 1])
    draw = sampler.sample(torch.zeros(2, NUM_IDS), slots, torch.tensor([1, 1]), rows)
    ended, other = draw.to_host()
    assert ended.token_id is None
    assert ended.error == "the grammar could not be compiled: too deep"
    assert other.token_id is not None


def test_the_raw_log_probabilities_are_told(grammars: Grammars) -> None:
    params = SamplingParams(temperature=0.0, logprobs=1, constraint=Constraint(GRAMMAR))
    sampler = Sampler(1, NUM_IDS, CPU, grammars=grammars)
    sampler.bind(Binding(0, (1,), (), params, StopRule(9)))
    logits = torch.randn(1, NUM_IDS)
    (sampled,) = sampler.sample(
        logits, torch.tensor([0]), torch.tensor([1]), [SampleRow(0, 1)]
    ).to_host()
    assert sampled.logprobs is not None
    assert sampled.logprobs.chosen == pytest.approx(
        float(logits.log_softmax(-1)[0, sampled.token_id])
    )
