"""Prompts of different lengths, the same every time."""

import random
from pathlib import Path

from tokenizers import Tokenizer

_NAMES = ("Nina", "Diana", "Hugo", "Weng", "Laura", "Ben", "Ahmed", "Rosa")
_THINGS = ("shells", "badges", "buttons", "pencils", "cups", "plants")


def prompts(model: Path, count: int, seed: int = 0) -> list[list[int]]:
    """Token ids of ``count`` prompts of about 20 to 100 tokens, by the model's own tokenizer."""
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    draw = random.Random(seed)
    return [tokenizer.encode(_question(draw), add_special_tokens=False).ids for _ in range(count)]


def _question(draw: random.Random) -> str:
    name, thing = draw.choice(_NAMES), draw.choice(_THINGS)
    parts = [f"{name} has {draw.randrange(10, 99)} {thing}."]
    for _ in range(draw.randrange(1, 6)):
        giver = draw.choice(_NAMES)
        parts.append(f"{giver} gives {name} {draw.randrange(2, 50)} of the {thing}.")
    parts.append(f"How many {thing} does {name} have now?")
    return " ".join(parts)
