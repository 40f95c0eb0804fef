"""A tokenizer that can be counted by hand: two letters a token, as the stub server's."""

import random
from collections.abc import Sequence

from tests.bench import stub


class Letters:
    source = "two letters a token"

    def draw(self, random: random.Random, count: int) -> list[int]:
        return random.choices(range(stub.VOCAB_SIZE), k=count)

    async def encode(self, text: str) -> list[int]:
        return stub.encode(text)

    async def decode(self, ids: Sequence[int]) -> str:
        return stub.decode(ids)
