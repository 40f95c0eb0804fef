"""Prompts for a plan: random ones, or built of shared blocks where a trace says which repeat."""

import random
from collections.abc import Mapping
from typing import Any, Literal

from bench.client.asking import Ask, completion
from bench.workload.plan import Planned
from bench.workload.random_prompts import random_text
from bench.workload.tokens import Tokens


class PlanPrompts:
    """``fields`` go into every request (asking.completion).

    The same block id gives the same tokens within one run (one ``seed``), and others in the next,
    so that a server's prefix cache sees what the trace's server saw, and no more.
    """

    def __init__(
        self,
        model: str,
        tokens: Tokens,
        *,
        seed: int,
        prompt_as: Literal["text", "ids"],
        fields: Mapping[str, Any],
    ) -> None:
        self._model, self._tokens, self._seed, self._as = model, tokens, seed, prompt_as
        self._fields = fields
        self._draw = random.Random(seed)
        self._texts: dict[tuple[int, int], str] = {}

    async def ask(self, planned: Planned) -> tuple[Ask, int]:
        """The request, and how many tokens its prompt has by our own count. Text that is joined
        of blocks may miss the planned length by what merges at the joints; ids never do."""
        prompt: str | list[int]
        if self._as == "ids":
            prompt = self._ids(planned)
            length = len(prompt)
        else:
            prompt = await self._text(planned)
            length = len(await self._tokens.encode(prompt)) if planned.blocks else planned.input_len
        return completion(
            self._model, prompt, max_tokens=planned.output_len, **self._fields
        ), length

    def _ids(self, planned: Planned) -> list[int]:
        if not planned.blocks:
            return self._tokens.draw(self._draw, planned.input_len)
        ids: list[int] = []
        for block in planned.blocks:
            ids += self._tokens.draw(self._block_draw(block), planned.block_len)
        return ids[: planned.input_len]

    async def _text(self, planned: Planned) -> str:
        if not planned.blocks:
            return await random_text(self._tokens, planned.input_len, self._draw)
        parts = []
        left = planned.input_len
        for block in planned.blocks:
            length = min(left, planned.block_len)
            if length > 0:
                parts.append(await self._block_text(block, length))
            left -= length
        return "".join(parts)

    async def _block_text(self, block: int, length: int) -> str:
        """A shorter one begins like the whole one only by chance: as in the traces, where a last
        block that is not full has an id of its own."""
        if (block, length) not in self._texts:
            text = await random_text(self._tokens, length, self._block_draw(block))
            self._texts[block, length] = text
        return self._texts[block, length]

    def _block_draw(self, block: int) -> random.Random:
        return random.Random(f"{self._seed} {block}")
