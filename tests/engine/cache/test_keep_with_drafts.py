"""Sequences that begin from a kept state, and drafts: no token changes."""

import random
from collections.abc import Sequence

import pytest

from engine.batch import Binding, ForwardBatch, Keep, Row
from engine.runner import Engine
from engine.speculation import Speculation
from tests.engine.checkpoints import checkpoint, with_draft_layer
from tests.engine.driver import GREEDY, UNLIMITED, Driver, Request, load_engine
from tests.engine.test_speculation import oracle

PROMPT = tuple(random.Random(1).choices(range(250), k=87))
NEXT_TURN = tuple(random.Random(2).choices(range(250), k=70))
NUM_TOKENS = 24
KEPT = 9
"""The state slot that keeps."""


def truth(prompt: Sequence[int]) -> list[int]:
    """Computed whole, without drafts."""
    request = Request(tuple(prompt), NUM_TOKENS)
    Driver(load_engine(checkpoint("per_expert"))).run([request])
    return request.tokens


def decode(
    engine: Engine, slot: int, pages: tuple[int, ...], num_known: int, num_steps: int
) -> list[int]:
    """The tokens of steps with drafts, of a sequence of ``num_known`` tokens."""
    tokens: list[int] = []
    for _ in range(num_steps):
        row = Row(slot, pages, num_known + len(tokens) - 1, None, num_drafts=3)
        (sampled,) = engine.launch(ForwardBatch((row,), num_next_drafts=3)).result().sampled
        tokens += [each.token_id or 0 for each in sampled]
    return tokens


def begin(engine: Engine, row: Row, prompt: Sequence[int], from_slot: int | None) -> int:
    """Compute ``row``, a whole prompt or its part behind a kept state; the token after it."""
    engine.bind(Binding(row.state_slot, tuple(prompt), (), GREEDY, UNLIMITED))
    if from_slot is not None:
        engine.restore(row.state_slot, from_slot, row.start)
    ((first,),) = engine.launch(ForwardBatch((row,))).result().sampled
    return first.token_id or 0


@pytest.mark.parametrize("behind", ["a page of the prompt", "the answer"])
def test_drafts_of_a_restored_sequence_change_no_token(
    behind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = load_engine(with_draft_layer("per_expert"), max_drafts=3)
    answer = truth(PROMPT)
    asked, texts = [Request(PROMPT, NUM_TOKENS)], [[*PROMPT, *answer]]
    oracle(engine, monkeypatch, asked, texts, 1.0)
    pages = tuple(range(20))
    first = begin(engine, Row(0, pages, 0, PROMPT, keep=Keep(64, KEPT)), PROMPT, None)
    tokens = [first, *decode(engine, 0, pages, len(PROMPT) + 1, 4)]
    assert tokens == answer[: len(tokens)]

    kept, from_slot = 64, KEPT
    if behind == "the answer":
        # The state in the slot has the last step's first token, not the drafts accepted with it.
        assert isinstance(engine._drafts, Speculation)
        pending = engine._drafts._num_pending[0]
        kept, from_slot = len(PROMPT) + len(tokens) - 1 - pending, 0
        assert pending == 3
        assert kept % engine.layout.page_size
    prompt = [*(*PROMPT, *tokens)[:kept], *NEXT_TURN]
    true_answer = truth(prompt)
    asked.append(Request(tuple(prompt), NUM_TOKENS))
    texts.append([*prompt, *true_answer])
    num_whole = kept // engine.layout.page_size
    if kept % engine.layout.page_size:
        engine.copy_page(num_whole, 40)
    shared = (*range(num_whole), *range(40, 60))
    first = begin(engine, Row(1, shared, kept, NEXT_TURN), prompt, from_slot)
    found = [first, *decode(engine, 1, shared, len(prompt) + 1, 5)]
    assert found == true_answer[: len(found)]
    assert len(found) > 5
