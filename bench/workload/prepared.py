"""The requests of a level, made before the clock runs: random prompts, and sums among them."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.client.asking import Ask, chat, completion
from bench.throughput_settings import ThroughputSettings
from bench.workload.random_prompts import random_text
from bench.workload.spot_checks import SpotCheck, spot_check
from bench.workload.tokens import Tokens


@dataclass(frozen=True)
class Prepared:
    """A request ready to be sent; ``prompt_len`` tokens by our own count."""

    label: str
    ask: Ask
    prompt_len: int
    check: SpotCheck | None = None


class Maker:
    """Draws prompts; never the same twice, and all the same again from the same ``seed``."""

    def __init__(self, model: str, tokens: Tokens, settings: ThroughputSettings) -> None:
        self._model, self._tokens, self._settings = model, tokens, settings
        self._draw = random.Random(settings.seed)

    async def warm_ups(self, level: int) -> list[Prepared]:
        count = self._settings.warm_ups
        return [await self._random(f"level {level} warm-up {n}") for n in range(count)]

    async def level(self, level: int) -> list[Prepared]:
        count = self._settings.requests_at(level)
        sums = set(self._draw.sample(range(count), self._settings.spot_checks_at(level)))
        return [
            await (self._sum if number in sums else self._random)(f"level {level} #{number}")
            for number in range(count)
        ]

    async def _random(self, label: str) -> Prepared:
        length = self._settings.input_len
        if self._settings.prompt_as == "ids":
            return Prepared(label, self._ask(self._tokens.draw(self._draw, length)), length)
        text = await random_text(self._tokens, length, self._draw)
        return Prepared(label, self._ask(text), length)

    async def _sum(self, label: str) -> Prepared:
        check = await spot_check(self._tokens, self._settings.input_len, self._draw)
        ids = await self._tokens.encode(check.prompt)
        prompt = ids if self._settings.prompt_as == "ids" else check.prompt
        return Prepared(f"{label} sum", self._ask(prompt, temperature=0), len(ids), check)

    def _ask(self, prompt: str | Sequence[int], **fields: Any) -> Ask:
        settings = self._settings
        fields = {
            "stream": settings.stream,
            "max_tokens": settings.output_len,
            "ignore_eos": settings.ignore_eos,
            "exact": settings.exact,
            "temperature": settings.temperature,
            **settings.extra_body,
            **fields,
        }
        if settings.return_token_ids:
            fields["return_token_ids"] = True
        if settings.api == "chat":
            assert isinstance(prompt, str)
            return chat(self._model, prompt, **fields)
        return completion(self._model, prompt, **fields)
