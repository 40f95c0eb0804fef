"""Sequences of random tokens, whose decode steps are timed while a worker is idle.

They take memory that is free: no kept prefix is evicted for them, and no peer sees their slots.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple, Protocol

from engine.batch import Binding, ForwardBatch, Row, StepResult
from engine.cache.allocator import CacheAllocation, CacheAllocator
from engine.step import Step
from transport.wire.layout import CacheLayout
from transport.wire.sampling import SamplingParams, StopRule

PROMPT_TOKENS = 32
ROOM_TOKENS = 96
"""Tokens that a sequence is decoded for at most; then another prompt takes its place."""
PREFILL_ROWS = 32
"""Prompts in one batch: about as many tokens as a request that arrives meanwhile may wait for."""
GREEDY, ENDLESS = SamplingParams(temperature=0.0), StopRule(1 << 20)
Launch = Callable[[ForwardBatch], Step]


class TrialMemory(NamedTuple):
    """Memory of a worker's cache that only trials use: it is free as soon as a message comes."""

    num_pages: int = 0
    num_state_slots: int = 0


class Computes(Protocol):
    """The part of an engine that computes local batches (engine/runner.py)."""

    layout: CacheLayout
    num_ids: int

    def bind(self, binding: Binding) -> None: ...

    def launch(self, batch: ForwardBatch) -> Step: ...


@dataclass(eq=False)
class TrialSequence:
    """``num_cached``: tokens in the cache once every launched step has been read, at least; 0: its
    prompt is still to be computed."""

    allocation: CacheAllocation
    num_cached: int = 0


class TrialRows:
    """Up to ``num_rows`` sequences, fewer where less memory is free. Call ``release`` when all
    launched steps have been read."""

    def __init__(
        self, engine: Computes, memory: CacheAllocator, num_rows: int, random: Random
    ) -> None:
        self._engine, self._memory, self._random = engine, memory, random
        num_pages = engine.layout.pages_for(PROMPT_TOKENS + ROOM_TOKENS)
        free_slots = memory.free_state_slots - memory.kept.num_evictable
        free_pages = memory.free_pages - memory.num_pages_cached
        num = max(0, min(num_rows, free_slots, free_pages // num_pages))
        self._sequences = [TrialSequence(memory.reserve_unpublished(num_pages)) for _ in range(num)]

    def __len__(self) -> int:
        return len(self._sequences)

    @property
    def held(self) -> TrialMemory:
        num_pages = sum(len(each.allocation.pages) for each in self._sequences)
        return TrialMemory(num_pages, len(self._sequences))

    def prefill(self, num_rows: int, num_tokens: int) -> bool:
        """Compute some prompts, and wait for them, if any of the first ``num_rows`` sequences has
        no room for ``num_tokens`` more tokens. Returns False if all have room."""
        most = PROMPT_TOKENS + ROOM_TOKENS - num_tokens
        without = [each for each in self._sequences[:num_rows] if not 0 < each.num_cached <= most]
        if not without:
            return False
        rows = []
        for sequence in without[:PREFILL_ROWS]:
            slot, num_ids = sequence.allocation.slot.id, self._engine.num_ids
            tokens = tuple(self._random.randrange(num_ids) for _ in range(PROMPT_TOKENS))
            self._engine.bind(Binding(slot, tokens, (), GREEDY, ENDLESS))
            rows.append(Row(slot, sequence.allocation.pages, 0, tokens))
            sequence.num_cached = PROMPT_TOKENS
        self._engine.launch(ForwardBatch(tuple(rows))).result()
        return True

    def launch(self, num_rows: int, num_drafts: int, launch: Launch) -> "TrialStep":
        """Enqueue a decode step of the first ``num_rows`` sequences."""
        chosen = self._sequences[:num_rows]
        rows = tuple(
            Row(each.allocation.slot.id, each.allocation.pages, each.num_cached, None,
                num_drafts=num_drafts)
            for each in chosen
        )  # fmt: skip
        step = launch(ForwardBatch(rows, num_next_drafts=num_drafts))
        for each in chosen:
            each.num_cached += 1
        return TrialStep(step, chosen)

    def release(self) -> None:
        for each in self._sequences:
            self._memory.release(each.allocation)
        self._sequences = []


@dataclass(frozen=True)
class TrialStep:
    """A launched decode step."""

    step: Step
    sequences: Sequence[TrialSequence]

    def result(self) -> StepResult:
        """Wait for the step; it is the oldest one that has not been read."""
        result = self.step.result()
        for place, each in enumerate(self.sequences):
            num_tokens = 0 if result.aborted else len(result.sampled[place])
            each.num_cached += num_tokens - 1
        return result
