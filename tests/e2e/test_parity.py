"""What comes out of the whole system is what transformers computes: float32, token for token.

Every token but the first is decoded from a cache that was handed off, with freed memory
poisoned and every handoff's bytes compared at both ends.
"""

import random
from typing import Any

import pytest
import torch

from tests.e2e.conftest import Start
from tests.e2e.served import served
from tests.e2e.stack import Stack
from tests.e2e.streams import Stream, all_ended
from tests.engine.test_parity import LENGTHS, NUM_TOKENS, prompt, truth

TIE = 1e-4
SETTINGS: dict[str, Any] = {
    "dtype": "float32",
    "poison": True,
    "verify_handoff": True,
    "page_size": 16,
    "num_pages": 512,
    "max_batch_tokens": 128,
    "heartbeat": 0.25,
}


CASES = [("per_expert", 1), ("lean", 1), ("odd", 0)]
"""The shapes whose caches differ most. The others of SHAPES differ in how a checkpoint is stored
and in numbers of layers, key heads and experts: tests/engine/test_parity.py compares each with
transformers, and the stacks of test_end.py, test_failover.py and test_logs.py serve them. Lookahead
is when the loop reads tokens: the shape of the model has no part in it."""


@pytest.mark.parametrize(("name", "lookahead"), CASES)
async def test_tokens_and_logprobs(start: Start, name: str, lookahead: int) -> None:
    baton = start(served(name), lookahead=lookahead, **SETTINGS)
    for length in LENGTHS:
        await _compare(baton, name, [length])
    mixed = [LENGTHS[i % len(LENGTHS)] for i in range(16)]
    random.Random(name).shuffle(mixed)
    await _compare(baton, name, mixed)
    await baton.idle(num_workers=2)
    assert baton.stop() == 0


async def _compare(baton: Stack, name: str, lengths: list[int]) -> None:
    answers = await all_ended(
        [Stream(baton.url, prompt(n), max_tokens=NUM_TOKENS, logprobs=20) for n in lengths]
    )
    for answer, length in zip(answers, lengths, strict=True):
        assert (answer.finish, answer.error) == ("length", None)
        tokens, logprobs = truth(name, length)
        num_same = _agreeing(answer.token_ids, tokens, logprobs)
        assert num_same > 0
        got = torch.tensor(answer.logprobs[:num_same])
        chosen = torch.tensor(tokens[:num_same])
        expected = logprobs[:num_same].gather(1, chosen[:, None])[:, 0]
        torch.testing.assert_close(got, expected, atol=1e-4, rtol=0)
        best = torch.tensor([sorted(top, reverse=True)[:20] for top in answer.top_logprobs])
        expected_best = logprobs.topk(20).values
        torch.testing.assert_close(best[:num_same], expected_best[:num_same], atol=1e-4, rtol=0)


def _agreeing(got: list[int], tokens: list[int], logprobs: torch.Tensor) -> int:
    """How many tokens agree: all, or those before the first choice that was a tie for
    transformers itself (its two best closer than ``TIE``), after which the texts part."""
    assert len(got) == len(tokens)
    for i, (ours, theirs) in enumerate(zip(got, tokens, strict=True)):
        if ours != theirs:
            best = logprobs[i].topk(2)
            assert best.values[0] - best.values[1] < TIE, f"token {i}: {ours}, not {theirs}"
            assert ours in best.indices
            return i
    return len(got)
