"""What penalties and grammars say of a token behind drafts is what they say of it without."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from llguidance import LLMatcher

from engine.batch import Binding
from engine.sampling.fed_drafts import FedDrafts
from engine.sampling.grammars import Grammars
from engine.sampling.sampler import Sampler
from engine.sampling.verified import Verified
from engine.step import SampleRow
from transport.eos_ids import eos_ids
from transport.wire.sampling import Constraint, SamplingParams, StopRule

TINY = Path("models/tiny")
NUM_IDS, NUM_TOKENS, MOST = 1_306, 50, 3
GRAMMAR = LLMatcher.grammar_from_json_schema(
    {"type": "array", "items": {"type": "string", "maxLength": 6}, "minItems": 4, "maxItems": 8}
)
CPU = torch.device("cpu")
SETTINGS = {
    "grammar": SamplingParams(temperature=1.5, seed=1, constraint=Constraint(GRAMMAR)),
    "thought and grammar": SamplingParams(
        seed=2, constraint=Constraint(GRAMMAR, 9, thought_budget=5, closing_ids=(8, 9))
    ),
    "penalties": SamplingParams(seed=3, repetition_penalty=1.3, frequency_penalty=0.8),
    "both": SamplingParams(seed=4, presence_penalty=3.0, constraint=Constraint(GRAMMAR)),
}


class Run:
    """One sequence of random logits, the same for each position whoever samples it."""

    def __init__(self, params: SamplingParams) -> None:
        grammars = Grammars(TINY, NUM_IDS, eos_ids(TINY))
        self._logits = torch.randn(NUM_TOKENS + MOST + 1, NUM_IDS, generator=seeded(7)) * 4
        self._sampler = Sampler(1, NUM_IDS, CPU, grammars=grammars)
        self._sampler.bind(Binding(0, (1, 2, 3), (), params, StopRule(999)))
        self.tokens: list[int] = []

    def step(self, drafts: Sequence[int]) -> None:
        """Verify ``drafts`` behind the tokens so far."""
        first, places = len(self.tokens), range(len(drafts) + 1)
        rows = [SampleRow(0, 3 + first + place, place) for place in places]
        slots = torch.zeros(len(rows), dtype=torch.int64)
        ids = torch.tensor([*drafts, *[0] * (MOST - len(drafts))]).unsqueeze(1)
        fed = FedDrafts(ids, places, lambda slot: ids[:, slot].tolist())
        positions = torch.tensor([row.position for row in rows])
        logits = self._logits[first : first + len(rows)].clone()
        draw = self._sampler.sample(logits, slots, positions, rows, fed)
        chosen = draw.ids.tolist()
        agree = [a == b for a, b in zip(drafts, chosen, strict=False)]
        num_out = 1 + (agree.index(False) if False in agree else len(agree))
        verified = Verified(draw, (len(rows),), torch.tensor([num_out]))
        self._sampler.note_output(rows, slots, draw.ids, verified.num_out, verified)
        outcomes = [each for each in verified.to_host() if each is not None]
        assert not any(each.error for each in outcomes)
        self.tokens += [each.token_id or 0 for each in outcomes]


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("name", SETTINGS)
def test_the_same_tokens_whatever_is_drafted(name: str) -> None:
    plain, draw = Run(SETTINGS[name]), random.Random(5)
    while len(plain.tokens) < NUM_TOKENS:
        plain.step(())
    for right in (0.0, 0.6, 1.0):
        found, num_steps = Run(SETTINGS[name]), 0
        while (first := len(found.tokens)) < NUM_TOKENS:
            drafts = [
                token_id if draw.random() < right else draw.randrange(NUM_IDS)
                for token_id in plain.tokens[first : first + draw.randint(0, MOST)]
            ]
            found.step(drafts)
            num_steps += 1
        assert found.tokens[:NUM_TOKENS] == plain.tokens
        assert num_steps < NUM_TOKENS or not right
