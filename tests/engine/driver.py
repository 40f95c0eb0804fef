"""A scheduler small enough to be obviously right: drives an engine over whole requests."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from engine.batch import Binding, ForwardBatch, Row, Sampled
from engine.cache.pages import PagePool
from engine.cache.slots import SlotPool, StateSlot
from engine.config import MAX_DRAFTS, EngineConfig
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

    def __init__(
        self,
        engine: Engine,
        budget: int = 128,
        max_running: int = 16,
        num_drafts: Callable[[], int] = lambda: 0,
    ) -> None:
        """``num_drafts`` says before each step how many it is to make for the next one."""
        self.engine, self.budget, self.max_running = engine, budget, max_running
        self.num_drafts, self.num_steps = num_drafts, 0
        self.pages = PagePool(engine.pools.num_pages)
        self.slots = SlotPool(engine.pools.num_state_slots)

    def run(self, requests: Sequence[Request]) -> None:
        waiting, running = list(requests), list[_Running]()
        while waiting or running:
            while waiting and len(running) < self.max_running:
                running.append(self._admit(waiting.pop(0)))
            rows = self._rows(running)
            batch = ForwardBatch(tuple(row for _, row in rows), self.num_drafts())
            result = self.engine.launch(batch).result()
            self.num_steps += 1
            for (sequence, row), outcomes in zip(rows, result.sampled, strict=True):
                assert bool(outcomes) == row.sample
                sequence.computed += row.length if row.token_ids else len(outcomes)
                sequence.request.outcomes += outcomes
                if len(sequence.request.outcomes) >= sequence.request.num_tokens:
                    del sequence.request.outcomes[sequence.request.num_tokens :]
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
                row = Row(sequence.slot.id, sequence.pages, start, None, num_drafts=MAX_DRAFTS)
                rows.append((sequence, row))
                continue
            length = min(len(prompt) - start, budget)
            last = start + length == len(prompt)
            length = length if last else length // 64 * 64
            if length:
                budget -= length
                chunk = prompt[start : start + length]
                following = None if last else prompt[start + length]
                row = Row(sequence.slot.id, sequence.pages, start, chunk, last, next_id=following)
                rows.append((sequence, row))
        return rows

    def _free(self, sequence: _Running) -> None:
        self.pages.release(sequence.pages)
        self.slots.release(sequence.slot)
        self.engine.poison_pages(sequence.pages)
        self.engine.poison_slot(sequence.slot.id)
