"""Arithmetic mixed among random prompts: does the server answer, or only produce tokens?"""

import random
import re
from dataclasses import dataclass

from bench.workload.tokens import Tokens

_LOOK_AT = 200  # characters of the answer; further on a right number would be chance


@dataclass(frozen=True)
class SpotCheck:
    """Worked sums up to the length of a prompt, then one to solve."""

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
