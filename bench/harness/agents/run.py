"""``baton bench load --agents``: conversations that grow turn by turn, as those of agents do.

All agents share a system prompt. Each sends its turns one after the other: the whole conversation
so far, with the server's own answers in it, and one more message. A server that keeps prefixes
computes only the new tokens, so the time to first token stays the same while the prompts grow.
"""

import asyncio
import math
import random

from bench.harness.agents.conversation import Script, Turn, converse, script
from bench.harness.agents.result import AgentsLoad, lines
from bench.harness.client.asking import Ask, chat
from bench.harness.client.reading import read
from bench.harness.conduct import Session
from bench.harness.figures.counting import count, judged
from bench.harness.figures.outcome import Outcome
from bench.harness.load_settings import LoadSettings
from bench.harness.loops import warm_up
from bench.harness.workload.prompts import random_text
from bench.harness.workload.tokens import Tokens

TEMPLATE_LEN = 16
"""Tokens that a chat template adds to a message, at most."""


async def agents(settings: LoadSettings, tokens: Tokens, session: Session) -> AgentsLoad:
    """Run all conversations. Raises ValueError if the last turns do not fit the server, and
    PromptsFailed."""
    assert settings.agents is not None
    check_fits(settings, session.server.max_model_len or math.inf)
    draw = random.Random(f"{settings.seed} system")
    text = await random_text(tokens, settings.agents_shared_prefix, draw)
    system = {"role": "system", "content": text}
    scripts = [await script(system, settings, tokens, n) for n in range(settings.agents)]
    found = AgentsLoad(settings, tokens.source)
    await warm_up(session.client, await _warm_ups(settings, tokens, session), session.control)
    if session.control.stopped is not None:
        return found
    session.progress.begin(f"{settings.agents} agents", settings.agents * settings.turns)
    await session.client.open(settings.agents)
    async with asyncio.TaskGroup() as group:
        running = [
            group.create_task(
                converse(said, settings, session, number / (settings.rate or math.inf))
            )
            for number, said in enumerate(scripts)
        ]
    for number, said in enumerate(scripts):
        found.agents.append(
            await _outcomes(f"agent {number}", settings, said, running[number].result(), tokens)
        )
    for text in lines(found):
        session.progress.say(text)
    return found


async def _warm_ups(settings: LoadSettings, tokens: Tokens, session: Session) -> list[Ask]:
    """Warm-ups without the shared system prompt, which must be new to the server."""
    draw, length = random.Random(f"{settings.seed} warm-up"), settings.agents_turn_len.high
    fields = {"max_tokens": settings.output_len.high, **settings.fields()}
    return [
        chat(session.server.model, await random_text(tokens, length, draw), **fields)
        for _ in range(settings.warm_ups)
    ]


async def _outcomes(
    label: str, settings: LoadSettings, said: Script, turns: list[Turn], tokens: Tokens
) -> list[Outcome]:
    """Count and judge the turns of one agent. Prompt lengths leave out what the template adds."""
    found: list[Outcome] = []
    prompt_len = settings.agents_shared_prefix
    for turn, message_len in zip(turns, said.message_lens, strict=False):
        prompt_len += message_len
        record, ask = read(turn.exchange), turn.ask
        counted = await count(record, tokens, asked=ask.max_tokens, exact=ask.exact)
        record = judged(record, counted)
        found.append(Outcome(f"{label} turn {len(found) + 1}", record, counted, prompt_len))
        prompt_len += counted.verified
    return found


def check_fits(settings: LoadSettings, most: float) -> None:
    """Raise ValueError if the last turns may be longer than ``most`` tokens."""
    a_turn = settings.agents_turn_len.high + settings.output_len.high + 2 * TEMPLATE_LEN
    longest = settings.agents_shared_prefix + TEMPLATE_LEN + settings.turns * a_turn
    if longest > most:
        raise ValueError(
            f"turns, agents_shared_prefix, agents_turn_len, output_len: a conversation has up to "
            f"{longest} tokens at its end, and the server takes at most {most}"
        )
