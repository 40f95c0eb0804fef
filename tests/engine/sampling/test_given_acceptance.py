"""Engines with random weights whose drafts are accepted with a given probability."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from engine.batch import ForwardBatch
from engine.config import EngineConfig
from engine.runner import Engine
from engine.step import Step
from tests.engine.checkpoints import checkpoint, with_draft_layer
from tests.engine.driver import GREEDY, Driver, Request, load_engine
from transport.wire.sampling import Constraint, SamplingParams, StopRule

NUM_TOKENS = 120


def load(probability: float | None, **settings: Any) -> Engine:
    return load_engine(
        with_draft_layer("per_expert"), load_format="dummy", max_drafts=3,
        draft_acceptance=probability, **settings,
    )  # fmt: skip


def requests(num: int = 6, **settings: Any) -> list[Request]:
    draw = random.Random(4)
    samplings = (GREEDY, SamplingParams(temperature=0.8, presence_penalty=0.5, logprobs=1))
    return [
        Request(
            tuple(draw.choices(range(250), k=9 + i)), NUM_TOKENS,
            structs.replace(samplings[i % 2], seed=100 + i, **settings),
        )
        for i in range(num)
    ]  # fmt: skip


def run(engine: Engine, asked: list[Request]) -> int:
    """Run the requests together, with three drafts a step; returns the number of steps."""
    driver = Driver(engine, num_drafts=lambda: 3)
    driver.run(asked)
    return driver.num_steps


def verdicts(engine: Engine, request: Request) -> dict[int, bool]:
    """Run a request alone: whether the draft of each token's index that was verified was
    accepted."""
    found, launch = dict[int, bool](), engine.launch

    def launched(batch: ForwardBatch) -> Step:
        step = launch(batch)
        result = step.result()
        (row,), (num_drafts,), (sampled,) = batch.rows, result.drafts, result.sampled
        for i in range(min(num_drafts, len(sampled))):
            found[row.start + 1 + i] = i + 1 < len(sampled)
        return step

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "launch", launched)
        run(engine, [request])
    return found


def test_the_given_share_of_drafts_is_accepted() -> None:
    engine = load(0.8)
    found = [given for each in requests() for given in verdicts(engine, each).values()]
    assert len(found) > 400
    assert sum(found) / len(found) == pytest.approx(0.8, abs=0.05)


def test_all_and_none_are_accepted_at_1_and_0() -> None:
    # The first step of a sequence has no drafts, and every later one makes four tokens.
    assert run(load(1.0), requests(1)) == 1 + 1 + NUM_TOKENS // 4
    assert run(load(0.0), requests(1)) == NUM_TOKENS


def test_the_tokens_depend_on_neither_batch_nor_state_slot() -> None:
    together, alone = requests(), requests()
    run(load(0.7), together)
    engine = load(0.7)
    for request in reversed(alone):
        run(engine, [request])
    assert [each.tokens for each in together] == [each.tokens for each in alone]


def test_a_sequence_that_goes_on_elsewhere_has_the_same_drafts_accepted() -> None:
    engine, (whole,) = load(0.7), requests(1)
    found = verdicts(engine, whole)
    begun = whole.tokens[:40]
    moved = replace(requests(1)[0], prompt=(*whole.prompt, *begun), num_tokens=NUM_TOKENS - 40)
    again = verdicts(engine, moved)
    both = found.keys() & again.keys()
    assert len(both) > 40
    assert [found[i] for i in both] == [again[i] for i in both]


def test_tokens_that_are_restricted_are_the_targets_own() -> None:
    """A grammar's mask and min_tokens hold for every output token."""
    thought = Constraint(
        "", thought_end=9, thought_budget=5, closing_ids=(9,), answer_ids=(3, 4, 5)
    )
    request = requests(1, constraint=thought)[0]
    run(load(1.0), [request])
    assert request.tokens[5:9] == [9, 3, 4, 5]
    stops = tuple(range(250))
    early = replace(
        requests(1)[0], stop=StopRule(NUM_TOKENS, stop_token_ids=stops, min_tokens=NUM_TOKENS)
    )
    run(load(1.0), [early])
    assert not set(early.tokens) & set(stops)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"draft_acceptance": 1.5}, "draft_acceptance: 1.5 is not from 0 to 1"),
        ({"draft_acceptance": float("nan")}, "draft_acceptance: nan is not"),
        ({"load_format": "auto"}, "draft_acceptance: .* needs the load format dummy"),
        ({"max_drafts": 0}, "draft_acceptance: 0.8, but speculate is off"),
    ],
)
def test_bad_settings(changes: dict[str, Any], message: str) -> None:
    settings: dict[str, Any] = {"load_format": "dummy", "max_drafts": 2, "draft_acceptance": 0.8}
    with pytest.raises(ValueError, match=message):
        EngineConfig(Path(), 8, 2, **settings | changes)


def test_it_takes_a_draft_layer() -> None:
    with pytest.raises(ValueError, match="draft_acceptance: the checkpoint has no draft layer"):
        load_engine(
            checkpoint("per_expert"), load_format="dummy", max_drafts=2, draft_acceptance=0.8
        )


def test_engines_with_different_acceptance_do_not_exchange_sequences() -> None:
    assert load(0.8).fingerprint == load(0.8).fingerprint != load(0.7).fingerprint
