"""Which worker gets a request. Pure.

    prefill   the fewest prompt tokens ahead
    decode    chosen only when the prompt is done: the fewest sequences, then the most free pages
    generate  at a colocated worker, or a decode worker while no prefill worker takes work: the
              fewest sequences, then the fewest prompt tokens ahead, then the most free pages

A worker is only chosen if it has room by what the coordinator itself has placed there, counted in
the requests' lengths as of now: a worker's own report is a heartbeat old, and may not yet know of
what was placed since. A worker that the request has just failed at is the last choice. Ties go to
the one that was given nothing for longest, so low load spreads evenly. None means: wait, memory
is what is short.

Workers that could not hold the request to its end are passed over while there is one that can,
full or not. When there is none, the largest get it: it may end early. It fails where it outgrows
that worker. A request that no worker can hold even now is placed at once, to be refused.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from coordinator.core.registry import Worker
from coordinator.core.request import Request

Load = Callable[[Worker], tuple[int, ...]]


@dataclass(frozen=True)
class PlacementLimits:
    """``max_tokens_ahead`` bounds the prompt tokens placed at a worker and not yet computed;
    ``prefill_watermark`` is the share of its pages beyond which a prefill worker gets no more."""

    max_tokens_ahead: int = 16_384
    prefill_watermark: float = 0.9

    def __post_init__(self) -> None:
        if self.max_tokens_ahead < 1:
            raise ValueError(f"max_tokens_ahead: {self.max_tokens_ahead} < 1")
        if not 0.0 < self.prefill_watermark <= 1.0:
            raise ValueError(f"prefill_watermark: {self.prefill_watermark} not in (0, 1]")


def choose_prefill(
    workers: Iterable[Worker], request: Request, limits: PlacementLimits
) -> Worker | None:
    """The prefill worker for the request's tokens, of workers that are ``large_enough``."""
    fitting = (
        w
        for w in workers
        if _takes_prompt(w, request.num_tokens, limits)
        and _has_room(w, request.num_tokens, share=limits.prefill_watermark)
    )
    return _least_loaded(fitting, request, lambda w: (w.tokens_ahead,))


def choose_decode(workers: Iterable[Worker], request: Request) -> Worker | None:
    """The decode worker for the request's tokens, its newest included, of workers that are
    ``large_enough``."""
    fitting = (w for w in workers if _has_room(w, request.num_tokens + 1, growing=True))
    return _least_loaded(fitting, request, lambda w: (len(w.assigned), -w.free_pages))


def choose_generate(
    workers: Iterable[Worker], request: Request, limits: PlacementLimits
) -> Worker | None:
    """The worker that computes the request's tokens and goes on, of workers that are
    ``large_enough``."""
    fitting = (
        w
        for w in workers
        if _takes_prompt(w, request.num_tokens, limits)
        and _has_room(w, request.num_tokens + 1, growing=True)
    )
    return _least_loaded(
        fitting, request, lambda w: (len(w.assigned), w.tokens_ahead, -w.free_pages)
    )


def _least_loaded(fitting: Iterable[Worker], request: Request, load: Load) -> Worker | None:
    return min(
        fitting,
        key=lambda w: (w.instance == request.failed_at, *load(w), w.last_placed),
        default=None,
    )


def large_enough(workers: Iterable[Worker], num_tokens: int) -> list[Worker]:
    """Those that take work and can hold so many tokens; if none can, the largest."""
    taking = [worker for worker in workers if not worker.draining]
    longest = max((worker.hello.max_seq_len for worker in taking), default=0)
    return [w for w in taking if w.hello.max_seq_len >= min(num_tokens, longest)]


def _takes_prompt(worker: Worker, num_tokens: int, limits: PlacementLimits) -> bool:
    ahead = worker.tokens_ahead
    return ahead == 0 or ahead + num_tokens <= limits.max_tokens_ahead


def _has_room(
    worker: Worker, num_tokens: int, *, share: float = 1.0, growing: bool = False
) -> bool:
    """Whether a state slot and pages are free, within ``share`` of all pages; with ``growing``
    one more page is kept for each sequence there. What a worker cannot hold even alone needs no
    room: it refuses that itself."""
    pools = worker.hello.memory.pools
    num_pages = worker.layout.pages_for(num_tokens)
    if not worker.assigned or num_pages > pools.num_pages:
        return True
    if len(worker.assigned) >= min(worker.hello.max_running, pools.num_state_slots):
        return False
    growth = len(worker.assigned) if growing else 0
    return worker.num_pages_assigned + num_pages + growth <= pools.num_pages * share
