"""Which worker gets a request. Pure.

Prefill: the fewest prompt tokens ahead. Decode, chosen only when the prompt is done: the fewest
sequences, then the most free pages. Ties go to the worker that was given work least often, so
that low load spreads evenly. None means: wait, memory is what is short.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from coordinator.registry import Worker
from coordinator.request import State


@dataclass(frozen=True)
class PlacementLimits:
    """``max_tokens_ahead`` bounds the prompt tokens placed at a prefill worker and not yet
    computed; ``prefill_watermark`` is the share of its pages beyond which it gets no more."""

    max_tokens_ahead: int = 16_384
    prefill_watermark: float = 0.9

    def __post_init__(self) -> None:
        if self.max_tokens_ahead < 1:
            raise ValueError(f"max_tokens_ahead: {self.max_tokens_ahead} < 1")
        if not 0.0 < self.prefill_watermark <= 1.0:
            raise ValueError(f"prefill_watermark: {self.prefill_watermark} not in (0, 1]")


def choose_prefill(
    workers: Iterable[Worker], num_tokens: int, limits: PlacementLimits
) -> Worker | None:
    """The prefill worker for a prompt of ``num_tokens``."""
    fitting = [w for w in workers if not w.draining and _takes_prompt(w, num_tokens, limits)]
    return min(fitting, key=lambda w: (_tokens_ahead(w), w.num_placed), default=None)


def choose_decode(workers: Iterable[Worker], num_tokens: int) -> Worker | None:
    """The decode worker for a sequence of ``num_tokens``, its newest token included."""
    fitting = [w for w in workers if not w.draining and _has_room(w, num_tokens)]
    return min(
        fitting,
        key=lambda w: (len(w.assigned), w.pages_assigned(), w.num_placed),
        default=None,
    )


def _tokens_ahead(worker: Worker) -> int:
    return sum(r.num_tokens for r in worker.assigned.values() if r.state is State.PREFILLING)


def _takes_prompt(worker: Worker, num_tokens: int, limits: PlacementLimits) -> bool:
    if not worker.assigned:
        return True
    ahead = _tokens_ahead(worker)
    if ahead and ahead + num_tokens > limits.max_tokens_ahead:
        return False
    pools = worker.hello.memory.pools
    pages = worker.pages_assigned() + worker.layout.pages_for(num_tokens)
    has_slot = len(worker.assigned) < pools.num_state_slots
    return has_slot and pages <= pools.num_pages * limits.prefill_watermark


def _has_room(worker: Worker, num_tokens: int) -> bool:
    if not worker.assigned:
        return True
    pools = worker.hello.memory.pools
    if len(worker.assigned) >= min(worker.hello.max_running, pools.num_state_slots):
        return False
    growth = len(worker.assigned)
    needed = worker.layout.pages_for(num_tokens + 1)
    return worker.pages_assigned() + needed + growth <= pools.num_pages
