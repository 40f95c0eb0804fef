"""A scheduler small enough to be obviously right: drives an engine over whole requests."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from engine.batch import Binding, ForwardBatch, Row, Sampled
from engine.cache.pages import PagePool
from engine.cache.slots import SlotPool, StateSlot
from engine.config import EngineConfig
from engine.kernels.interface import Kernels
from engine.runner import Engine
from transport.wire.sampling import SamplingParams, StopRule

GREEDY = SamplingParams(temperature=0.0)
UNLIMITED = StopRule(max_tokens=1 << 30)


def load_engine(folder: Path, kernels: Kernels | None = None, **overrides: Any) -> Engine:
    """A poisoned CPU engine over plain memory full of NaN bytes."""
    settings: dict[str, Any] = {
        "num_pages": 256,
        "num_state_slots": 20,
        "page_size": 16,
        "poison": True,
    }
    config = EngineConfig(model_dir=folder, **settings | overrides)
    return Engine.load(config, lambda n: torch.full((n,), 255, dtype=torch.uint8), kernels=kernels)


@dataclass
class Request:
    prompt: tuple[int, ...]
    num_tokens: int
    sampling: SamplingParams = GREEDY
    stop: StopRule = UNLIMITED
    outcomes: list[Sampled] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        return [-1 if o.token_id is None else o.token_id for o in self.outcomes]


@dataclass
class _Running:
    request: Request
    slot: StateSlot
    pages: tuple[int, ...]
    computed: int = 0


class Driver:
    """Every step: one token of all that decode, and prefill chunks within ``budget`` tokens."""

    def __init__(self, engine: Engine, budget: int = 128, max_running: int = 16) -> None:
        self.engine, self.budget, self.max_running = engine, budget, max_running
        self.pages = PagePool(engine.pools.num_pages)
        self.slots = SlotPool(engine.pools.num_state_slots)

    def run(self, requests: Sequence[Request]) -> None:
        waiting, running = list(requests), list[_Running]()
        while waiting or running:
            while waiting and len(running) < self.max_running:
                running.append(self._admit(waiting.pop(0)))
            rows = self._rows(running)
            result = self.engine.launch(ForwardBatch(tuple(row for _, row in rows))).result()
            for (sequence, row), outcome in zip(rows, result.sampled, strict=True):
                assert (outcome is not None) == row.sample
                sequence.computed += row.length
                if outcome is not None:
                    sequence.request.outcomes.append(outcome)
                if len(sequence.request.outcomes) == sequence.request.num_tokens:
                    running.remove(sequence)
                    self._free(sequence)
        self.pages.check()
        self.slots.check()
        assert self.pages.num_held == self.slots.num_held == 0

    def _admit(self, request: Request) -> _Running:
        slot = self.slots.reserve()
        length = len(request.prompt) + request.num_tokens
        pages = self.pages.reserve(self.engine.layout.pages_for(length))
        self.engine.bind(Binding(slot.id, request.prompt, (), request.sampling, request.stop))
        return _Running(request, slot, pages)

    def _rows(self, running: Sequence[_Running]) -> list[tuple[_Running, Row]]:
        rows, budget = [], self.budget
        for sequence in running:
            prompt, start = sequence.request.prompt, sequence.computed
            if start >= len(prompt):
                rows.append((sequence, Row(sequence.slot.id, sequence.pages, start, None)))
                continue
            length = min(len(prompt) - start, budget)
            last = start + length == len(prompt)
            length = length if last else length // 64 * 64
            if length:
                budget -= length
                chunk = prompt[start : start + length]
                rows.append((sequence, Row(sequence.slot.id, sequence.pages, start, chunk, last)))
        return rows

    def _free(self, sequence: _Running) -> None:
        self.pages.release(sequence.pages)
        self.slots.release(sequence.slot)
        self.engine.poison_pages(sequence.pages)
        self.engine.poison_slot(sequence.slot.id)
