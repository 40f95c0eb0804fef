"""``baton bench load --agents``: conversations that grow turn by turn, as those of agents do.

All agents share the beginning of a system prompt. Each sends its turns one after the other: the
whole conversation so far, with the server's own answers in it, and one more message. A server that
keeps prefixes computes only the new tokens.

Life of a level, a number of agents at once: the system prompts are drawn, and in the shape ``deep``
sent once, so that the server has them cached; then the clock runs and the conversations are held.
After the last level the answers are counted and judged.
"""

import asyncio
import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

from bench.harness.agents.conversation import Script, Turn, converse, script
from bench.harness.agents.result import AgentsLevel, AgentsLoad, lines
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
CONTEXTS_AT_ONCE = 4
"""System prompts that are computed at once before the clock runs."""

System = Mapping[str, Any]
"""The system message of an agent."""


async def agents(settings: LoadSettings, tokens: Tokens, session: Session) -> AgentsLoad:
    """Run all conversations, level by level. Raises ValueError if the last turns do not fit the
    server, and PromptsFailed."""
    assert settings.agents is not None
    check_fits(settings, session.server.max_model_len or math.inf)
    found = AgentsLoad(settings, tokens.source)
    await warm_up(session.client, await _warm_ups(settings, tokens, session), session.control)
    contexts = _Contexts(settings, tokens)
    for num_agents in settings.agents:
        if session.control.stopped is not None:
            break
        systems = await contexts.of(num_agents)
        level = await _level(systems, settings, tokens, session)
        found.levels.append(level)
        for text in lines(level):
            session.progress.say(text)
    return found


async def _level(
    systems: Sequence[System], settings: LoadSettings, tokens: Tokens, session: Session
) -> AgentsLevel:
    num_agents, shape = len(systems), settings.shape
    level = AgentsLevel(num_agents, shape)
    seeds = [f"{settings.seed} level {num_agents} agent {n}" for n in range(num_agents)]
    scripts = [
        await script(system, settings, tokens, seed)
        for system, seed in zip(systems, seeds, strict=True)
    ]
    if shape.cached:
        await _compute(systems, settings, session)
    session.progress.begin(f"{num_agents} agents", num_agents * shape.turns)
    await session.client.open(num_agents)
    async with asyncio.TaskGroup() as group:
        running = [
            group.create_task(
                converse(said, settings, session, number / (settings.rate or math.inf))
            )
            for number, said in enumerate(scripts)
        ]
    for number, said in enumerate(scripts):
        label = f"level {num_agents} agent {number}"
        level.agents.append(
            await _outcomes(label, settings, said, running[number].result(), tokens)
        )
    return level


class _Contexts:
    """The system messages of the agents: the same in all levels if they are to be cached, new ones
    in each level otherwise."""

    def __init__(self, settings: LoadSettings, tokens: Tokens) -> None:
        self._shape, self._seed, self._tokens = settings.shape, settings.seed, tokens
        self._kept: list[System] = []

    async def of(self, num_agents: int) -> list[System]:
        """The system message of each agent of a level."""
        cached, seed = self._shape.cached, f"{self._seed}"
        if not cached:
            self._kept, seed = [], f"{seed} level {num_agents}"
        shared = await _text(self._shape.shared_prefix, f"{seed} system", self._tokens)
        for number in range(len(self._kept), num_agents):
            own = await _text(self._shape.own_prefix, f"{seed} context {number}", self._tokens)
            self._kept.append({"role": "system", "content": shared + own})
        return self._kept[:num_agents]


async def _text(num_tokens: int, seed: str, tokens: Tokens) -> str:
    return await random_text(tokens, num_tokens, random.Random(seed)) if num_tokens else ""


async def _compute(systems: Sequence[System], settings: LoadSettings, session: Session) -> None:
    """Let the server compute the system prompts, so that it has them cached: each once."""
    different = list({system["content"]: system for system in systems}.values())
    question = {"role": "user", "content": "Go on."}
    fields = settings.fields() | {"max_tokens": 1}
    asks = [chat(session.server.model, [system, question], **fields) for system in different]
    session.progress.begin("contexts", len(asks))
    step = session.progress.step
    await warm_up(session.client, asks, session.control, step, at_once=CONTEXTS_AT_ONCE)


async def _warm_ups(settings: LoadSettings, tokens: Tokens, session: Session) -> list[Ask]:
    """Warm-ups without the shared system prompt."""
    draw, shape = random.Random(f"{settings.seed} warm-up"), settings.shape
    fields = {"max_tokens": shape.output_len.high, **settings.fields()}
    return [
        chat(session.server.model, await random_text(tokens, shape.turn_len.high, draw), **fields)
        for _ in range(settings.warm_ups)
    ]


async def _outcomes(
    label: str, settings: LoadSettings, said: Script, turns: list[Turn], tokens: Tokens
) -> list[Outcome]:
    """Count and judge the turns of one agent. Prompt lengths leave out what the template adds."""
    found: list[Outcome] = []
    prompt_len = settings.shape.shared_prefix + settings.shape.own_prefix
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
    shape = settings.shape
    a_turn = shape.turn_len.high + shape.output_len.high + 2 * TEMPLATE_LEN
    longest = shape.shared_prefix + shape.own_prefix + TEMPLATE_LEN + shape.turns * a_turn
    if longest > most:
        raise ValueError(
            f"turns, agents_shared_prefix, agents_own_prefix, agents_turn_len, output_len: a "
            f"conversation has up to {longest} tokens at its end, and the server takes at most "
            f"{most}"
        )
