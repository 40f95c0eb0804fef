"""Prompts of an exact length: random tokens, which no cache has, and sums to be solved."""

import random
import re
from dataclasses import dataclass

from bench.harness.cannot_measure import CannotMeasure
from bench.harness.workload.tokens import Tokens

_ROUNDS = 200
_LOOK_AT = 200  # characters of an answer; a right number behind them would be chance


class PromptsFailed(CannotMeasure):
    """No text of the wanted length was found; the message has the nearest length."""


async def random_text(tokens: Tokens, length: int, draw: random.Random) -> str:
    """A text of exactly ``length`` tokens. Random ids are decoded and encoded again, cut or filled
    up, until a tokenizer counts ``length``. Raises PromptsFailed."""
    ids = tokens.draw(draw, length)
    nearest = 0
    for number in range(1, _ROUNDS + 1):
        text = await tokens.decode(ids)
        again = await tokens.encode(text)
        if len(again) == length:
            return text
        nearest = min(nearest, len(again), key=lambda n: abs(n - length)) or len(again)
        if number % 20 == 0:  # it repeats itself: start with other ids
            ids = tokens.draw(draw, length)
        elif len(again) > length:
            ids = again[:length]
        else:
            ids = again + tokens.draw(draw, length - len(again))
    raise PromptsFailed(f"no text of {length} tokens in {_ROUNDS} rounds; the nearest: {nearest}")


@dataclass(frozen=True)
class SpotCheck:
    """A prompt of worked sums with one to solve at its end. It shows whether the server answers or
    only produces tokens."""

    prompt: str
    question: str
    expected: int

    def passes(self, answer: str) -> bool:
        """True if the first number in the answer is right."""
        found = re.search(r"\d+", answer[:_LOOK_AT])
        return found is not None and int(found[0]) == self.expected


async def spot_check(tokens: Tokens, length: int, draw: random.Random) -> SpotCheck:
    """A spot check with as many worked sums as fit into ``length`` tokens."""
    a, b = draw.randrange(10, 90), draw.randrange(10, 90)
    question = f"{a} + {b} ="
    one = len(await tokens.encode(_shot(draw)))
    shots = [_shot(draw) for _ in range(max(0, length // max(1, one)))]
    while shots and len(await tokens.encode("".join(shots) + question)) > length:
        del shots[: max(1, len(shots) // 50)]
    return SpotCheck("".join(shots) + question, question, a + b)


def _shot(draw: random.Random) -> str:
    a, b = draw.randrange(10, 90), draw.randrange(10, 90)
    return f"{a} + {b} = {a + b}\n"
