"""Prompts for a plan: random, or built of the repeated blocks that a trace names."""

import random

from bench.harness.client.asking import completion
from bench.harness.load_settings import LoadSettings
from bench.harness.workload.plan import Planned
from bench.harness.workload.prepared import Prepared
from bench.harness.workload.prompts import random_text
from bench.harness.workload.tokens import Tokens


class PlanPrompts:
    """Makes the prompts of one run. A block id gives the same tokens within a run (one seed), and
    other tokens in the next run, so a prefix cache finds only the repetitions of the trace."""

    def __init__(self, model: str, tokens: Tokens, settings: LoadSettings) -> None:
        self._model, self._tokens, self._settings = model, tokens, settings
        self._draw = random.Random(settings.seed)
        self._texts: dict[tuple[int, int], str] = {}

    async def prepare(self, label: str, planned: Planned) -> Prepared:
        """A request with the length of its prompt by our own count. Text of several blocks may
        miss the planned length, as tokens merge where blocks meet; ids never do."""
        prompt: str | list[int]
        if self._settings.prompt_as == "ids":
            prompt = self._ids(planned)
            length = len(prompt)
        else:
            prompt = await self._text(planned)
            length = len(await self._tokens.encode(prompt)) if planned.blocks else planned.input_len
        fields = self._settings.fields()
        ask = completion(self._model, prompt, max_tokens=planned.output_len, **fields)
        return Prepared(label, ask, length)

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
        """The text of a block, cut to ``length`` tokens. A cut block and a whole one do not begin
        alike, as in the traces: there a last block that is not full has an id of its own."""
        if (block, length) not in self._texts:
            text = await random_text(self._tokens, length, self._block_draw(block))
            self._texts[block, length] = text
        return self._texts[block, length]

    def _block_draw(self, block: int) -> random.Random:
        return random.Random(f"{self._settings.seed} {block}")
