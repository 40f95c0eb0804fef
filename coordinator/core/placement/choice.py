"""Which worker gets a request. Pure.

    prefill   the fewest prompt tokens to compute: those ahead, and its own
    decode    chosen only when the prompt is done: the fewest sequences, then the most free pages
    generate  at a colocated worker, or a decode worker while no prefill worker takes work: the
              fewest sequences, then the fewest prompt tokens to compute, then the most free pages

What a worker need not compute of the prompt (reuse.py) counts: so a session's next turn goes where
its prefix is kept, until the work ahead there outweighs it, and then takes the prefix along.

A worker is only chosen if it has room by what the coordinator itself has placed there, counted in
the requests' lengths as of now: a worker's own report is a heartbeat old, and may not yet know of
what was placed since. Of that report only the pages that its sequences share count: those are held
once. A worker that the request has just failed at is the last choice. Ties go to
the one that was given nothing for longest, so low load spreads evenly. None means: wait, memory
is what is short.

A request that no worker can hold even now is placed at once, to be refused. candidates.py says
which workers may have a request at all.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from coordinator.core.placement.reuse import Reuse, Reuses, nothing
from coordinator.core.request import Request
from coordinator.core.settings import PlacementLimits
from coordinator.core.workers.worker import Worker

WORK_WEIGHT = 2
"""A token that a request itself computes counts as so many ahead: the request waits for it, and so
do all that are placed there later. So of requests that begin alike the second one goes to the same
worker, though another one would have its first token as soon."""
SEQUENCE_WORTH_LEN = 1_024
"""Tokens saved that are worth decoding beside one sequence more."""

Load = Callable[[Worker, Reuse], tuple[int, ...]]


class Place(NamedTuple):
    """The worker that computes a request's tokens, and what it reuses of them."""

    worker: Worker
    reuse: Reuse


def choose_prefill(
    workers: Iterable[Worker], request: Request, limits: PlacementLimits, reuses: Reuses = nothing
) -> Place | None:
    """The prefill worker for the request's tokens, of workers that are ``large_enough``."""
    room = (
        w for w in workers if w.load.has_room(request.num_tokens, share=limits.prefill_watermark)
    )
    fitting = _taking_prompt(room, request, limits, reuses)
    return _least_loaded(fitting, request, lambda w, reuse: (_work(w, request, reuse),))


def choose_decode(
    workers: Iterable[Worker], request: Request, reuses: Reuses = nothing
) -> Worker | None:
    """The decode worker for the request's tokens, its newest included, of workers that are
    ``large_enough``. One that keeps pages of an earlier turn need not pull and hold them twice: it
    may have one sequence more."""

    def load(worker: Worker, reuse: Reuse) -> tuple[int, ...]:
        num_sequences = worker.load.num_sequences - (reuse.num_tokens >= SEQUENCE_WORTH_LEN)
        return num_sequences, -worker.load.free_pages

    room = [w for w in workers if w.load.has_room(request.num_tokens + 1, growing=True)]
    if len(room) == 1:  # what is kept of the prompt changes nothing
        return room[0]
    least = _least_loaded((Place(w, reuses(w)) for w in room), request, load)
    return None if least is None else least.worker


def choose_generate(
    workers: Iterable[Worker], request: Request, limits: PlacementLimits, reuses: Reuses = nothing
) -> Place | None:
    """The worker that computes the request's tokens and goes on, of workers that are
    ``large_enough``."""

    def load(worker: Worker, reuse: Reuse) -> tuple[int, ...]:
        num_sequences = worker.load.num_sequences - reuse.saved_len // SEQUENCE_WORTH_LEN
        return num_sequences, _work(worker, request, reuse), -worker.load.free_pages

    room = (w for w in workers if w.load.has_room(request.num_tokens + 1, growing=True))
    return _least_loaded(_taking_prompt(room, request, limits, reuses), request, load)


def _least_loaded(fitting: Iterable[Place], request: Request, load: Load) -> Place | None:
    def cost(worker: Worker, reuse: Reuse) -> tuple[int, ...]:
        return worker.instance == request.failed_at, *load(worker, reuse), worker.load.last_placed

    return min(fitting, key=lambda place: cost(*place), default=None)


def _work(worker: Worker, request: Request, reuse: Reuse) -> int:
    """What the worker has to do until the request's first token, in prompt tokens."""
    own = request.num_tokens - reuse.num_tokens
    return worker.load.tokens_ahead + WORK_WEIGHT * own + reuse.cost_len


def _taking_prompt(
    workers: Iterable[Worker], request: Request, limits: PlacementLimits, reuses: Reuses
) -> Iterator[Place]:
    """Those that may have so much of the request ahead, and what each reuses of it."""
    for worker in workers:
        ahead = worker.load.tokens_ahead
        if ahead < limits.max_tokens_ahead:  # looking a prompt up takes its time
            reuse = reuses(worker)
            num_tokens = request.num_tokens - reuse.num_tokens
            if ahead == 0 or ahead + num_tokens <= limits.max_tokens_ahead:
                yield Place(worker, reuse)
