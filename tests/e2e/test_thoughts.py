"""A conversation with thoughts: with ``preserve_thinking`` each answer's end is a prefix hit."""

import asyncio
from itertools import pairwise

from bench.thoughts import Turn, converse, questions, summary
from tests.e2e.stack import Stack


async def test_an_answers_end_is_found_if_its_thought_is_preserved(tiny: Stack) -> None:
    asked = questions(3, 7)
    found: dict[bool, list[Turn]] = {True: [], False: []}
    for preserve, turns in found.items():
        conversation = converse(tiny.url, asked, preserve=preserve, max_tokens=200)
        for _ in asked:
            turns.append(await asyncio.to_thread(next, conversation))
            await tiny.idle(2)  # what the workers keep is known then
    preserved, dropped = found.values()
    assert all(turn.thought_tokens for turn in preserved)
    for before, turn in pairwise(preserved):
        # The last tokens of an answer came with its last step: they were not computed.
        end = before.prompt_tokens + before.output_tokens
        assert end - 16 < turn.cached_tokens < end
    for before, turn in pairwise(dropped):
        assert turn.cached_tokens < before.prompt_tokens, "the answer is computed once more"
    kept, lost = summary(preserved), summary(dropped)
    assert kept["hit_rate_later"] > lost["hit_rate_later"] + 0.1
    assert kept["computed_per_turn"] < lost["computed_per_turn"]
