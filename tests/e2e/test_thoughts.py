"""A conversation with thoughts: with ``preserve_thinking`` each answer's end is a prefix hit."""

import json
from functools import partial
from itertools import pairwise
from secrets import token_hex
from typing import Any, NamedTuple

import httpx

from bench.environment import ROOT
from bench.prometheus import series
from tests.e2e.stack import Stack
from tests.e2e.waiting import eventually

TURNS, PROBLEMS_EACH = 3, 7
"""Problems in each question, so that a turn is long enough to be kept."""


class Turn(NamedTuple):
    """Tokens of one turn. ``cached`` are a part of the prompt, ``thought`` of the output."""

    prompt: int
    cached: int
    output: int
    thought: int


async def converse(stack: Stack, questions: list[str], *, preserve: bool) -> list[Turn]:
    """Ask ``questions`` one after the other in one conversation, each with the whole conversation
    before it and the thoughts as clients send them back."""
    messages: list[dict[str, Any]] = []
    fixed = {
        "max_tokens": 200,
        "temperature": 0,
        "chat_template_kwargs": {"enable_thinking": True, "preserve_thinking": preserve},
        "cache_salt": token_hex(8),
    }
    turns = []
    async with httpx.AsyncClient(base_url=stack.url, timeout=120.0) as http:
        for question in questions:
            messages.append({"role": "user", "content": question})
            before = await num_kept(stack)
            answer = await http.post("/v1/chat/completions", json={"messages": messages, **fixed})
            found = answer.raise_for_status().json()
            said, usage = found["choices"][0]["message"], found["usage"]
            thought = {"reasoning_content": said.get("reasoning_content") or ""}
            messages.append({"role": "assistant", "content": said["content"] or "", **thought})
            turns.append(
                Turn(
                    usage["prompt_tokens"],
                    usage["prompt_tokens_details"]["cached_tokens"],
                    usage["completion_tokens"],
                    usage["completion_tokens_details"]["reasoning_tokens"],
                )
            )
            await eventually(partial(kept_more, stack, before), "the answer is kept")
    return turns


async def num_kept(stack: Stack) -> float:
    """Prefixes that the decode worker has kept so far, evicted ones included."""
    text = await stack.metrics()
    names = "baton_prefix_cache_prefixes", "baton_prefix_cache_evictions_total"
    at_decode = {"role": "decode", "tier": "gpu"}.items()
    return sum(
        value
        for name in names
        for labels, value in series(text, name)
        if at_decode <= labels.items()
    )


async def kept_more(stack: Stack, before: float) -> None:
    """A heartbeat tells of it, behind the message that names what is kept."""
    assert await num_kept(stack) > before


async def test_an_answers_end_is_found_if_its_thought_is_preserved(tiny: Stack) -> None:
    lines = (ROOT / "models" / "heldout.jsonl").read_text().splitlines()
    problems = [json.loads(line)["question"] for line in lines]
    starts = range(0, TURNS * PROBLEMS_EACH, PROBLEMS_EACH)
    questions = ["\n\n".join(problems[first : first + PROBLEMS_EACH]) for first in starts]
    preserved = await converse(tiny, questions, preserve=True)
    dropped = await converse(tiny, questions, preserve=False)
    assert all(turn.thought for turn in preserved)
    for before, turn in pairwise(preserved):
        # The last tokens of an answer came with its last step: they were not computed.
        end = before.prompt + before.output
        assert end - 16 < turn.cached < end
    for before, turn in pairwise(dropped):
        assert turn.cached < before.prompt, "the answer is computed once more"
    kept, lost = (sum(turn.cached for turn in turns[1:]) for turns in (preserved, dropped))
    asked, asked_again = (sum(turn.prompt for turn in turns[1:]) for turns in (preserved, dropped))
    assert kept / asked > lost / asked_again + 0.1, "the hit rate from the second turn on"
    assert asked - kept < asked_again - lost, "tokens that the later turns computed"
