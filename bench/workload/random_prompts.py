"""Prompts of random tokens with an exact length: nothing to guess from, nothing to have cached."""

import random

from bench.workload.tokens import Tokens

_ROUNDS = 200


class PromptsFailed(Exception):
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
