"""The choice of a worker for a request. Pure.

    prefill   the fewest prompt tokens to compute: those ahead, and its own
    decode    chosen only when the prompt is done: the fewest sequences, then the most free pages
    generate  at a colocated worker, or a decode worker while no prefill worker takes work: the
              fewest sequences, then the fewest prompt tokens to compute, then the most free pages.
              While it has prompts enough, a worker gets no sequence more than another one that only
              has too many prompts: decode steps of a group take as long as its fullest member's

Tokens that a worker can reuse (reuse.py) are not to be computed. So the next turn of a conversation
goes where its prefix is kept, until the work ahead there outweighs that; then it takes the prefix
along.

A worker is chosen only if it has room by its ``Load``: what the coordinator has placed there, as
long as it is now. A worker on which this request has just failed is chosen last. Ties go to the
worker that has been idle longest, which spreads a low load evenly. ``None`` means that no worker
has enough free memory now.

A request that no worker could hold even alone is placed at once, and is refused there.
candidates.py says which workers may have a request at all.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from coordinator.core.placement.reuse import Reuse, Reuses, nothing
from coordinator.core.request import Request
from coordinator.core.settings import PlacementLimits
from coordinator.core.workers.worker import Worker

WORK_WEIGHT = 2
"""A token of the request itself counts as so many tokens ahead: the request waits for it, and so do
requests that are placed there later. So the second of two requests that begin alike goes to the
same worker, though another worker would give its first token as soon."""
SEQUENCE_WORTH_LEN = 1_024
"""Saved tokens that are worth decoding beside one more sequence."""

Load = Callable[[Worker, Reuse], tuple[int, ...]]


class Place(NamedTuple):
    """A worker that computes a request's tokens, and what it reuses of them."""

    worker: Worker
    reuse: Reuse


def choose_prefill(
    workers: Iterable[Worker], request: Request, limits: PlacementLimits, reuses: Reuses = nothing
) -> Place | None:
    """The prefill worker for the request's tokens, among workers that are ``large_enough``."""
    room = (
        w for w in workers if w.load.has_room(request.num_tokens, share=limits.prefill_watermark)
    )
    fitting = _taking_prompt(room, request, limits.max_tokens_ahead, reuses)
    return _least_loaded(fitting, request, lambda w, reuse: (_work(w, request, reuse),))


def choose_decode(
    workers: Iterable[Worker], request: Request, reuses: Reuses = nothing
) -> Worker | None:
    """The decode worker for the request's tokens, including the newest one, among workers that are
    ``large_enough``. A worker that keeps pages of an earlier turn need not pull and hold them
    twice, so it may have one more sequence."""

    def load(worker: Worker, reuse: Reuse) -> tuple[int, ...]:
        num_sequences = worker.load.num_sequences - (reuse.num_tokens >= SEQUENCE_WORTH_LEN)
        return num_sequences, -worker.load.free_pages

    room = [w for w in workers if w.load.has_room(request.num_tokens + 1, growing=True)]
    if len(room) == 1:  # kept prefixes change nothing
        return room[0]
    least = _least_loaded((Place(w, reuses(w)) for w in room), request, load)
    return None if least is None else least.worker


def choose_generate(
    workers: Iterable[Worker], request: Request, limits: PlacementLimits, reuses: Reuses = nothing
) -> Place | None:
    """The worker that computes the request's tokens and continues it, among workers that are
    ``large_enough``."""

    def load(worker: Worker, reuse: Reuse) -> tuple[int, ...]:
        num_sequences = worker.load.num_sequences - reuse.saved_len // SEQUENCE_WORTH_LEN
        return num_sequences, _work(worker, request, reuse), -worker.load.free_pages

    room = [w for w in workers if w.load.has_room(request.num_tokens + 1, growing=True)]
    most_ahead = limits.max_tokens_ahead_generating
    fitting = _taking_prompt(room, request, most_ahead, reuses)
    fewest = min((w.load.num_sequences for w in room if w.instance != request.failed_at), default=0)
    even = (
        place
        for place in fitting
        if load(*place)[0] <= fewest or 2 * place.worker.load.tokens_ahead < most_ahead
    )
    return _least_loaded(even, request, load)


def _least_loaded(fitting: Iterable[Place], request: Request, load: Load) -> Place | None:
    def cost(worker: Worker, reuse: Reuse) -> tuple[int, ...]:
        return worker.instance == request.failed_at, *load(worker, reuse), worker.load.last_placed

    return min(fitting, key=lambda place: cost(*place), default=None)


def _work(worker: Worker, request: Request, reuse: Reuse) -> int:
    """Prompt tokens to compute at the worker until the request's first token, weighted."""
    own = request.num_tokens - reuse.num_tokens
    return worker.load.tokens_ahead + WORK_WEIGHT * own + reuse.cost_len


def _taking_prompt(
    workers: Iterable[Worker], request: Request, most_ahead: int, reuses: Reuses
) -> Iterator[Place]:
    """The workers with at most ``most_ahead`` prompt tokens to compute, including this request's,
    each with what it reuses of the prompt."""
    for worker in workers:
        ahead = worker.load.tokens_ahead
        if ahead < most_ahead:  # before the prompt is looked up, which takes time
            reuse = reuses(worker)
            num_tokens = request.num_tokens - reuse.num_tokens
            if ahead == 0 or ahead + num_tokens <= most_ahead:
                yield Place(worker, reuse)
