"""Speculation changes no token, whatever is drafted and accepted."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.batch import Binding, ForwardBatch, Row
from engine.runner import Engine
from engine.sampling.fed_drafts import FedDrafts
from engine.speculation import Speculation
from engine.step import Step
from tests.engine.checkpoints import checkpoint, with_draft_layer
from tests.engine.driver import GREEDY, Driver, Request, load_engine
from transport.wire.sampling import SamplingParams, StopRule

SAMPLED = SamplingParams(temperature=0.8, top_p=0.9, seed=11)
PENALISED = SamplingParams(temperature=0.7, presence_penalty=0.5, seed=3)
TOP_K = SamplingParams(temperature=1.2, top_k=12, min_p=0.02, seed=5, logprobs=2)


def requests(num_tokens: int = 24) -> list[Request]:
    draw = random.Random(4)
    every = [GREEDY, SAMPLED, PENALISED, TOP_K, GREEDY]
    lengths = [5, 64, 130, 1, 71]
    return [
        Request(tuple(draw.choices(range(250), k=length)), num_tokens + i, sampling)
        for i, (sampling, length) in enumerate(zip(every, lengths, strict=True))
    ]


def run(folder: Path, num_drafts: Callable[[], int], **settings: Any) -> list[Request]:
    asked = requests()
    driver = Driver(load_engine(folder, **settings), budget=64, num_drafts=num_drafts)
    driver.run(asked)
    return asked


@pytest.fixture(scope="module")
def truth() -> list[list[int]]:
    return [request.tokens for request in run(checkpoint("per_expert"), lambda: 0)]


@pytest.mark.parametrize("num_drafts", [0, 1, 2, 4])
def test_any_number_of_drafts_gives_the_same_tokens(
    num_drafts: int, truth: list[list[int]]
) -> None:
    found = run(with_draft_layer("per_expert"), lambda: num_drafts, max_drafts=4)
    assert [request.tokens for request in found] == truth


def test_their_number_may_change_in_the_middle(truth: list[list[int]]) -> None:
    draw = random.Random(8)
    found = run(with_draft_layer("per_expert"), lambda: draw.choice([0, 1, 2, 3, 4]), max_drafts=4)
    assert [request.tokens for request in found] == truth
    found = run(with_draft_layer("per_expert"), lambda: draw.choice([0, 3]), max_drafts=4)
    assert [request.tokens for request in found] == truth


@pytest.mark.parametrize("name", ["per_expert", "lean", "odd", "fused"])
@pytest.mark.parametrize("right", [0.6, 1.0])
def test_drafts_that_are_often_right_give_the_same_tokens(
    name: str, right: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A random draft layer is nearly never right: let an oracle replace some of its drafts."""
    plain = run(checkpoint(name), lambda: 0)
    expected = {i: [*r.prompt, *r.tokens] for i, r in enumerate(plain)}
    asked = requests()
    engine = load_engine(with_draft_layer(name), max_drafts=3)
    driver = Driver(engine, budget=64, num_drafts=lambda: 3)
    oracle(engine, monkeypatch, asked, list(expected.values()), right)
    driver.run(asked)
    assert [r.tokens for r in asked] == [r.tokens for r in plain]
    if right == 1.0:
        assert driver.num_steps < 24 + 10


def oracle(
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    asked: list[Request],
    texts: list[list[int]],
    right: float,
) -> None:
    draw, owners = random.Random(2), dict[int, int]()
    bind = engine.bind

    def bound(binding: Any) -> None:
        prompts = [request.prompt for request in asked]
        owners[binding.state_slot] = prompts.index(tuple(binding.prompt_ids))
        bind(binding)

    monkeypatch.setattr(engine, "bind", bound)
    guess = engine._sampler.guess

    def guessed(
        logits: torch.Tensor, slots: torch.Tensor, at: torch.Tensor, drafts: FedDrafts
    ) -> torch.Tensor:
        ids = guess(logits, slots, at, drafts)
        for i, (slot, position) in enumerate(zip(slots.tolist(), at.tolist(), strict=True)):
            text = texts[owners[slot]]
            if draw.random() < right and position < len(text):
                ids[i] = text[position]
        return ids

    monkeypatch.setattr(engine._sampler, "guess", guessed)


def test_a_slot_has_nothing_of_the_sequence_before(
    truth: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two state slots for five sequences, which end with drafts made and updates pending."""
    asked = requests()
    engine = load_engine(with_draft_layer("per_expert"), max_drafts=3, num_state_slots=2)
    texts = [[*request.prompt, *ids] for request, ids in zip(asked, truth, strict=True)]
    oracle(engine, monkeypatch, asked, texts, right=0.8)
    Driver(engine, budget=64, max_running=2, num_drafts=lambda: 3).run(asked)
    assert [request.tokens for request in asked] == truth


@pytest.mark.parametrize("right", [0.0, 0.8])
def test_steps_may_run_ahead_of_their_results(
    right: float, truth: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host then knows a sequence's length only from below, and its end one step late."""
    asked, tokens = requests(), list[list[int]]()
    engine = load_engine(with_draft_layer("per_expert"), max_drafts=3)
    texts = [[*request.prompt, *ids] for request, ids in zip(asked, truth, strict=True)]
    oracle(engine, monkeypatch, asked, texts, right)
    pages = [tuple(range(12 * slot, 12 * slot + 12)) for slot in range(len(asked))]
    for slot, request in enumerate(asked):
        engine.bind(Binding(slot, request.prompt, (), request.sampling, request.stop))
        row = Row(slot, pages[slot], 0, request.prompt)
        ((first,),) = engine.launch(ForwardBatch((row,))).result().sampled
        tokens.append([first.token_id or 0])
    ahead: list[Step] = []
    while any(len(ids) < len(t) for ids, t in zip(tokens, truth, strict=True)):
        rows = tuple(
            Row(
                slot,
                pages[slot],
                len(r.prompt) + len(tokens[slot]) - 1 + len(ahead),
                None,
                num_drafts=3,
            )
            for slot, r in enumerate(asked)
        )
        ahead.append(engine.launch(ForwardBatch(rows, 3)))
        if len(ahead) > 1:
            for ids, outcomes in zip(tokens, ahead.pop(0).result().sampled, strict=True):
                ids += [outcome.token_id or 0 for outcome in outcomes]
    assert [ids[: len(t)] for ids, t in zip(tokens, truth, strict=True)] == truth


def test_a_checkpoint_without_a_draft_layer_serves_without() -> None:
    engine = load_engine(checkpoint("per_expert"), max_drafts=4)
    assert engine.max_drafts == 0
    assert engine.layout == load_engine(checkpoint("per_expert")).layout


def test_drafts_do_not_leave_the_pages_of_their_sequence() -> None:
    asked = [Request(tuple(range(30)), 34, GREEDY, StopRule(34))]
    engine = load_engine(with_draft_layer("per_expert"), max_drafts=4, page_size=16)
    Driver(engine, num_drafts=lambda: 4).run(asked)
    plain = [Request(tuple(range(30)), 34, GREEDY)]
    Driver(load_engine(checkpoint("per_expert"), page_size=16)).run(plain)
    assert asked[0].tokens == plain[0].tokens
    assert isinstance(engine._drafts, Speculation)
