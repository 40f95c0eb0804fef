"""The draft layer against the recipe's own, over a whole sequence at once."""

import random
from itertools import cycle

import pytest
import torch

from engine.batch import Binding, ForwardBatch, Row
from engine.inputs import Inputs
from engine.model.mtp import Chosen, draft_hidden
from engine.sampling.fed_drafts import FedDrafts
from models.recipe import mtp
from tests.engine.checkpoints import checkpoint, reference, with_draft_layer
from tests.engine.driver import GREEDY, Driver, Request, load_engine
from transport.wire.sampling import StopRule

NAME, NUM_DRAFTS = "per_expert", 3


@pytest.fixture(scope="module")
def guesses() -> tuple[list[int], list[tuple[int, torch.Tensor]]]:
    """(text, (index, logits of the draft for it) in the order of the engine's drafts)."""
    found: list[tuple[int, torch.Tensor]] = []
    draw = random.Random(5)
    request = Request(tuple(draw.choices(range(250), k=75)), 24, GREEDY)
    engine = load_engine(with_draft_layer(NAME, apart=False), max_drafts=NUM_DRAFTS)
    guess = engine._sampler.guess

    def noted(logits: torch.Tensor, slots: torch.Tensor, at: torch.Tensor, drafts: FedDrafts):
        found.append((int(at), logits[0].clone()))
        return guess(logits, slots, at, drafts)

    engine._sampler.guess = noted  # type: ignore[method-assign]
    # Chunks of 64: the last token of one needs the first of the next. Steps between that make no
    # drafts leave no gap in the layer's KV.
    numbers = cycle((NUM_DRAFTS, 0, 0, NUM_DRAFTS))
    Driver(engine, budget=64, num_drafts=lambda: next(numbers)).run([request])
    return [*request.prompt, *request.tokens], found


@torch.no_grad()
def test_drafts_are_those_of_the_recipe(
    guesses: tuple[list[int], list[tuple[int, torch.Tensor]]],
) -> None:
    text, found = guesses
    trunk = reference(NAME)
    draft = mtp.load(with_draft_layer(NAME, apart=False)).eval()
    hidden = trunk.model(torch.tensor([text])).last_hidden_state
    embed = trunk.get_input_embeddings()
    steps = [found[i : i + NUM_DRAFTS] for i in range(0, len(found), NUM_DRAFTS)]
    assert len(steps) > 5
    for step in steps:
        last = step[0][0] - 2
        if last + 1 >= len(text):
            continue
        assert [index for index, _ in step] == [last + 2 + k for k in range(NUM_DRAFTS)]
        ids, rows = text[1 : last + 2], hidden[:, : last + 1]
        for _, logits in step:
            m = draft(embed(torch.tensor([ids])), rows)
            truth = trunk.lm_head(m[0, -1])
            torch.testing.assert_close(logits, truth, atol=2e-3, rtol=1e-3)
            ids, rows = [*ids, int(logits.argmax())], torch.cat((rows, m[:, -1:]), 1)


def test_a_layer_in_the_checkpoint_is_one_beside_it() -> None:
    apart = load_engine(with_draft_layer(NAME), max_drafts=1)
    within = load_engine(with_draft_layer(NAME, apart=False), max_drafts=1)
    ours, theirs = apart._model.weights.mtp, within._model.weights.mtp
    assert ours is not None
    assert theirs is not None
    assert torch.equal(ours.fc.plain, theirs.fc.plain)
    assert apart.layout == within.layout
    assert (
        apart.layout.num_attention_layers
        == 1 + load_engine(checkpoint(NAME)).layout.num_attention_layers
    )


@torch.inference_mode()
def test_chosen_tokens_have_the_hidden_states_that_they_have_among_all() -> None:
    engine = load_engine(with_draft_layer(NAME), max_drafts=1)
    prompts, pages = [tuple(range(20)), tuple(range(9, 42))], [(0, 1, 2), (3, 4, 5)]
    for slot, prompt in enumerate(prompts):
        engine.bind(Binding(slot, prompt, (), GREEDY, StopRule(9)))
        engine.launch(ForwardBatch((Row(slot, pages[slot], 0, prompt),))).result()
    rows = [Row(0, pages[0], 20 + i, None) for i in range(3)] + [Row(1, pages[1], 33, None)]
    model, device = engine._model, torch.device("cpu")
    ids, hidden = torch.tensor([5, 6, 7, 8]), torch.randn(4, model.config.hidden_size)
    where = engine.cache, engine._kernels
    every = draft_hidden(model, ids, hidden, Inputs.of(rows, engine.layout, device), *where)
    chosen = Chosen(torch.tensor([2, 3]), Inputs.of(rows[2:], engine.layout, device))
    inputs = Inputs.of(rows, engine.layout, device)
    found = draft_hidden(model, ids, hidden, inputs, *where, chosen)
    torch.testing.assert_close(found, every[2:], atol=1e-5, rtol=1e-4)
