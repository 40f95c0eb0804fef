"""Requests that are made before the clock runs; their answers are read and judged afterwards."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.harness.client.asking import Ask, chat, completion
from bench.harness.client.exchange import Exchange
from bench.harness.client.reading import read
from bench.harness.figures.counting import CLAIM_SHARE, count, judged
from bench.harness.figures.outcome import Outcome
from bench.harness.throughput_settings import ThroughputSettings
from bench.harness.workload.prompts import SpotCheck, random_text, spot_check
from bench.harness.workload.tokens import Tokens


@dataclass(frozen=True)
class Prepared:
    """A request ready to be sent, with a prompt of ``prompt_len`` tokens by our own count."""

    label: str
    ask: Ask
    prompt_len: int
    check: SpotCheck | None = None


async def outcomes(
    prepared: Sequence[Prepared],
    exchanges: Sequence[Exchange | None],
    tokens: Tokens,
    tolerance: float = CLAIM_SHARE,
) -> list[Outcome]:
    """The outcomes of the requests that were sent; ``exchanges`` has the order of ``prepared``."""
    found = []
    for item, exchange in zip(prepared, exchanges, strict=True):
        if exchange is not None:
            record, ask = read(exchange), item.ask
            counted = await count(
                record, tokens, asked=ask.max_tokens, exact=ask.exact, tolerance=tolerance
            )
            found.append(Outcome(item.label, judged(record, counted), counted, item.prompt_len))
    return found


class Maker:
    """Draws prompts: never the same twice in a run, and the same ones again for the same seed."""

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
        prompt: str | list[int]
        if self._settings.prompt_as == "ids":
            prompt = self._tokens.draw(self._draw, length)
        else:
            prompt = await random_text(self._tokens, length, self._draw)
        return Prepared(label, self._ask(prompt), length)

    async def _sum(self, label: str) -> Prepared:
        check = await spot_check(self._tokens, self._settings.input_len, self._draw)
        ids = await self._tokens.encode(check.prompt)
        prompt = ids if self._settings.prompt_as == "ids" else check.prompt
        return Prepared(f"{label} sum", self._ask(prompt, temperature=0), len(ids), check)

    def _ask(self, prompt: str | list[int], **more: Any) -> Ask:
        fields = self._settings.fields() | more
        if self._settings.api == "chat":
            assert isinstance(prompt, str)
            return chat(self._model, prompt, **fields)
        return completion(self._model, prompt, **fields)
