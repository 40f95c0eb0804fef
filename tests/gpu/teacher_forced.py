"""An engine at the real model's widths, run over given texts: the logits of all that it samples."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from engine.batch import Binding, ForwardBatch, Keep, Row
from engine.runner import Engine
from transport.wire.sampling import SamplingParams, StopRule

FULL_SIZE = Path(__file__).parents[2] / "bench/models/qwen3.5-35b-a3b/config.json"
VOCAB = 32_000
PAGES_EACH = 140
MARGIN = 0.1
"""Between the two best logits: a smaller one is no clear choice."""


def four_layers() -> dict[str, Any]:
    """The full-size config.json with three DeltaNet layers, one of attention and fewer ids."""
    settings: dict[str, Any] = json.loads(FULL_SIZE.read_text())
    text = settings["text_config"]
    text |= {"num_hidden_layers": 4, "layer_types": text["layer_types"][:4], "vocab_size": VOCAB}
    return settings


class Forced:
    """Runs the engine over given texts and keeps the logits of every sampled row."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.logits: list[torch.Tensor] = []
        self._sample = engine._sampler.sample
        engine._sampler.sample = self._kept  # type: ignore[method-assign]

    def _kept(self, logits, *rest):  # type: ignore[no-untyped-def]
        self.logits.append(logits.float().clone())
        return self._sample(logits, *rest)

    def close(self) -> None:
        self.engine._sampler.sample = self._sample  # type: ignore[method-assign]

    def bind(self, slot: int, prompt: list[int]) -> None:
        greedy = SamplingParams(temperature=0.0)
        self.engine.bind(Binding(slot, tuple(prompt), (), greedy, StopRule(1 << 20)))

    def prefill(self, slot: int, tokens: list[int], start: int, *, last: bool) -> None:
        row = Row(slot, pages(slot), start, tuple(tokens), sample=last)
        self.engine.launch(ForwardBatch((row,))).result()

    def decode(self, slots: list[int], starts: list[int], tokens: list[int]) -> torch.Tensor:
        with torch.inference_mode():
            self.engine._sampler.next_token[torch.tensor(slots).cuda()] = torch.tensor(
                tokens
            ).cuda()
        rows = [Row(s, pages(s), start, None) for s, start in zip(slots, starts, strict=True)]
        self.engine.launch(ForwardBatch(tuple(rows))).result()
        return self.logits[-1]


def pages(slot: int) -> tuple[int, ...]:
    return tuple(range(slot * PAGES_EACH, (slot + 1) * PAGES_EACH))


def teacher_forced(
    forced: Forced, texts: Sequence[list[int]], num_decoded: int
) -> list[torch.Tensor]:
    """Logits [num_decoded, vocab] of each text: all but its last ``num_decoded`` tokens are
    prefilled, and those are decoded, all texts together."""
    found: list[list[torch.Tensor]] = []
    lengths = [len(text) - num_decoded for text in texts]
    for slot, (text, length) in enumerate(zip(texts, lengths, strict=True)):
        forced.bind(slot, text[:length])
        forced.prefill(slot, text[:length], 0, last=True)
        found.append([forced.logits[-1][0]])
    slots = list(range(len(texts)))
    for step in range(num_decoded - 1):
        starts = [length + step for length in lengths]
        fed = [text[start] for text, start in zip(texts, starts, strict=True)]
        for slot, logits in zip(slots, forced.decode(slots, starts, fed), strict=True):
            found[slot].append(logits)
    return [torch.stack(rows) for rows in found]


def alone_and_among(
    forced: Forced, prompt: list[int], others: Sequence[list[int]]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The logits of a decoded token after ``prompt``: alone, and among the ``others``."""
    slot, length = len(others), len(prompt)
    for each in (slot, slot + 1):
        forced.bind(each, prompt)
        forced.prefill(each, prompt, 0, last=True)
    alone = forced.decode([slot], [length], [7])[0]
    for each, text in enumerate(others):
        forced.bind(each, text)
        forced.prefill(each, text, 0, last=True)
    slots, starts = [*range(len(others)), slot + 1], [*map(len, others), length]
    return alone, forced.decode(slots, starts, [*[3] * len(others), 7])[-1]


def whole_and_in_chunks(forced: Forced, prompt: list[int], slot: int) -> list[torch.Tensor]:
    """The logits behind ``prompt`` computed in one pass at ``slot``, and in chunks of 448 tokens at
    the next slot."""
    forced.bind(slot, prompt)
    forced.prefill(slot, prompt, 0, last=True)
    forced.bind(slot + 1, prompt)
    for start in range(0, len(prompt), 448):
        chunk = prompt[start : start + 448]
        forced.prefill(slot + 1, chunk, start, last=start + 448 >= len(prompt))
    return forced.logits[-2:]


def whole_and_behind_kept(
    forced: Forced, prompt: list[int], slot: int, place: int = 2048
) -> list[torch.Tensor]:
    """The logits behind ``prompt`` computed in one pass at ``slot``, which keeps the state behind
    ``place`` tokens in the slot before it, and computed behind that state at the next slot."""
    forced.bind(slot, prompt)
    keeping = Row(slot, pages(slot), 0, tuple(prompt), keep=Keep(place, slot - 1))
    forced.engine.launch(ForwardBatch((keeping,))).result()
    forced.bind(slot + 1, prompt)
    forced.engine.restore(slot + 1, slot - 1, place)
    shared = place // forced.engine.layout.page_size
    table = (*pages(slot)[:shared], *pages(slot + 1)[shared:])
    behind = Row(slot + 1, table, place, tuple(prompt[place:]))
    forced.engine.launch(ForwardBatch((behind,))).result()
    return forced.logits[-2:]


def kl(reference: torch.Tensor, ours: torch.Tensor) -> torch.Tensor:
    """Kullback-Leibler divergence of each row, in nats."""
    expected, found = reference.log_softmax(-1), ours.log_softmax(-1)
    return (expected.exp() * (expected - found)).sum(-1)
