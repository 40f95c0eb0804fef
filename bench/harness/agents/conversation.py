"""One agent: its messages are drawn before the clock runs, and the server's answers come between
them."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from bench.harness.client.asking import Ask, chat
from bench.harness.client.exchange import Exchange
from bench.harness.client.reading import read
from bench.harness.client.record import Record
from bench.harness.conduct import Session
from bench.harness.load_settings import LoadSettings
from bench.harness.workload.prompts import random_text
from bench.harness.workload.tokens import Tokens


@dataclass(frozen=True)
class Script:
    """What an agent says. Each turn adds one of ``messages`` to the conversation, which begins with
    ``system``. ``message_lens`` and ``answer_lens``: tokens of each message, by our own count, and
    of the answer that it asks for."""

    system: Mapping[str, Any]
    messages: list[dict[str, Any]]
    message_lens: list[int]
    answer_lens: list[int]


async def script(
    system: Mapping[str, Any], settings: LoadSettings, tokens: Tokens, seed: str
) -> Script:
    """The script of one agent: random tokens, the same for the same seed. Raises
    PromptsFailed."""
    draw, shape = random.Random(seed), settings.shape
    lens = [shape.turn_len.draw(draw) for _ in range(shape.turns)]
    texts = [await random_text(tokens, length, draw) for length in lens]
    messages: list[dict[str, Any]] = [{"role": "user", "content": text} for text in texts]
    if settings.agents_turn_as == "tool":
        for turn, message in enumerate(messages[1:], 1):
            message |= {"role": "tool", "tool_call_id": f"call_{turn}"}
    answers = [shape.output_len.draw(draw) for _ in range(shape.turns)]
    return Script(system, messages, lens, answers)


@dataclass(frozen=True)
class Turn:
    """One request of an agent. ``ask`` has no body: bodies are long."""

    ask: Ask
    exchange: Exchange


async def converse(
    said: Script, settings: LoadSettings, session: Session, begins_after_s: float
) -> list[Turn]:
    """Send the turns, and return those that were sent: all, unless one failed (it has no answer to
    continue from) or the run was stopped."""
    control, messages, turns = session.control, [said.system], list[Turn]()
    pause_s = begins_after_s
    for message, max_tokens in zip(said.messages, said.answer_lens, strict=True):
        if await control.stopped_within(pause_s):
            break
        messages.append(message)
        ask = chat(session.server.model, messages, max_tokens=max_tokens, **settings.fields())
        exchange = await session.client.exchange(ask)
        turns.append(Turn(replace(ask, content=b""), exchange))
        control.saw(exchange)
        answer = read(exchange)
        session.progress.step(failed=not answer.ok)
        if not answer.ok:
            break
        messages.append(_message(answer))
        pause_s = settings.think_s
    return turns


def _message(answer: Record) -> dict[str, Any]:
    """The message by which clients send an answer back."""
    thought = {"reasoning_content": answer.reasoning} if answer.reasoning else {}
    return {"role": "assistant", "content": answer.text, **thought}
