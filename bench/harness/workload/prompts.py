"""Prompts of an exact length: random tokens, which no cache can hold, and sums to be solved."""

import random
import re
from dataclasses import dataclass

from bench.harness.cannot_measure import CannotMeasure
from bench.harness.workload.tokens import Tokens

_ROUNDS = 200
_LOOK_AT = 200  # characters of an answer; further on a right number would be chance


class PromptsFailed(CannotMeasure):
    """No text of the wanted length was found; the message says how near it came."""


async def random_text(tokens: Tokens, length: int, draw: random.Random) -> str:
    """A text of exactly ``length`` tokens: random ids are decoded and encoded again, cut or filled
    up, until what a server will count is ``length``. Raises PromptsFailed."""
    ids = tokens.draw(draw, length)
    nearest = 0
    for number in range(1, _ROUNDS + 1):
        text = await tokens.decode(ids)
        again = await tokens.encode(text)
        if len(again) == length:
            return text
        nearest = min(nearest, len(again), key=lambda n: abs(n - length)) or len(again)
        if number % 20 == 0:  # it goes round in circles: begin anew
            ids = tokens.draw(draw, length)
        elif len(again) > length:
            ids = again[:length]
        else:
            ids = again + tokens.draw(draw, length - len(again))
    raise PromptsFailed(f"no text of {length} tokens in {_ROUNDS} rounds; the nearest: {nearest}")


@dataclass(frozen=True)
class SpotCheck:
    """Worked sums up to the length of a prompt, then one to solve: does the server answer, or only
    produce tokens?"""

    prompt: str
    question: str
    expected: int

    def passes(self, answer: str) -> bool:
        """The first number of the answer is the right one."""
        found = re.search(r"\d+", answer[:_LOOK_AT])
        return found is not None and int(found[0]) == self.expected


async def spot_check(tokens: Tokens, length: int, draw: random.Random) -> SpotCheck:
    """As many worked sums as fit into ``length`` tokens; the question alone may be longer."""
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
