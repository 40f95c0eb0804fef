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
``Candidates`` says which workers may have a request at all, busy or not.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from coordinator.core.placement.reuse import Reuse, Reuses, nothing
from coordinator.core.request import Request, State
from coordinator.core.settings import PlacementLimits
from coordinator.core.workers.registry import Registry
from coordinator.core.workers.worker import Worker

HELD_BACK_S = 5.0
"""How long a request that gave NaN counts against its worker, until it is tried elsewhere."""
OVERDUE_LANDING_S = 2.0
"""A handoff takes milliseconds. A decode worker with a slower one gets no other handoffs."""
WORK_WEIGHT = 2
"""A token of the request itself counts as so many tokens ahead: the request waits for it, and so do
requests that are placed there later. So the second of two requests that begin alike goes to the
same worker, though another worker would give its first token as soon."""
SEQUENCE_WORTH_LEN = 1_024
"""Saved tokens that are worth decoding beside one more sequence."""


class Candidates:
    """Selects the workers of ``registry`` that may have a request, busy or not.

    role     Prompts go to prefill or colocated workers. While no prefill worker takes work, they go
             to decode workers, which then continue the request as a colocated worker does. Placed
             requests stay where they are when a prefill worker is back.
    size     Workers that could not hold the request to its end are skipped while another worker
             could, full or not. If none could, the largest may have it: the request may end early,
             and fails if it outgrows that worker.
    path     A handoff goes to a decode worker that has proved that it can pull from there.
    health   A worker with an open breaker gets only probes, and no request returns to a worker at
             which it had faults. A worker is skipped while one of its handoffs takes too long, or
             shortly after several of its requests gave NaN.

    Health never excludes the last worker that can hold a request.
    """

    def __init__(self, registry: Registry, monotonic: Callable[[], float]) -> None:
        self._registry = registry
        self._monotonic = monotonic

    def to_compute(self, request: Request) -> list[Worker]:
        """The workers that may compute the request's tokens, its prompt first."""
        standby = self._registry.decode_computes_prompts()
        generating = self._registry.of("decode" if standby else "colocated")
        if generating:
            return self._healthy(large_enough(generating, request.max_len), request)
        prefill = large_enough(self._registry.prefilling(), request.num_tokens)
        return self._healthy(prefill, request)

    def to_help(self, request: Request) -> list[Worker]:
        """The decode workers that may compute the request's prompt beside their steps, and then
        continue it. A worker with an open breaker gets its probes elsewhere."""
        able = [w for w in self._registry.taking("decode") if w.can_be("prefill")]
        fit = self._healthy(large_enough(able, request.max_len), request)
        return [w for w in fit if w.breaker.closed]

    def to_pull(self, request: Request, proved: set[str]) -> list[Worker]:
        """The healthy workers in ``proved`` that can hold the request."""
        able = self._able_to_pull(request, request.prefill_worker, proved)
        return self._healthy(able, request)

    def to_move_to(self, request: Request) -> list[Worker]:
        """The workers that can hold a request that is being decoded, and may take it over. A worker
        with an open breaker, or reserved for another request, is not worth a move."""
        source = request.decode_worker
        others = self.proved(source) - {source}
        able = self._able_to_pull(request, source, others)
        return [w for w in able if w.breaker.closed and w.reserved_for is None and not w.draining]

    def to_take(self, request: Request, source: str) -> list[Worker]:
        """The healthy prefill workers that may take over a request that is decoded at ``source``,
        and can hold it to its end."""
        proved = self._registry.takers_from(source)
        usable = self._usable(source, {worker.instance for worker in proved})
        return [
            worker
            for worker in proved
            if worker.instance in usable
            and worker.breaker.closed
            and worker.reserved_for is None
            and worker.hello.max_seq_len >= request.max_len
        ]

    def _able_to_pull(self, request: Request, exporter: str, proved: set[str]) -> list[Worker]:
        """The workers in ``proved`` that can hold the request. Untested workers count in the
        comparison of sizes: the request waits for their test rather than take a smaller one."""
        able = _long_enough(self._registry.decoding_from(exporter), request.max_len)
        return [w for w in able if w.instance in proved]

    def proved(self, exporter: str) -> set[str]:
        """The workers that take work and can pull sequences from this worker's memory, by their
        tests, without those whose handoffs from there fail while others work."""
        return self._usable(exporter, self._registry.proved_from(exporter))

    def _usable(self, exporter: str, proved: set[str]) -> set[str]:
        return self._registry.pair_breakers.pulling_from(exporter, proved, self._monotonic())

    def too_long_for_all(self, request: Request) -> bool:
        """True if the request was too long for a worker, and no large enough one has joined."""
        role = request.too_long_for
        if role == "prefill" and self._registry.decode_computes_prompts():
            role = "decode"
        return role is not None and not self._registry.holds(role, request.needs_len)

    def _healthy(self, workers: list[Worker], request: Request) -> list[Worker]:
        """The healthy ``workers`` for the request: at least one, unless ``workers`` is empty."""
        closed = [worker for worker in workers if worker.breaker.closed]
        able = workers
        if closed:
            now = self._monotonic()
            able = [
                w
                for w in closed
                if not (w.load.pending_pulls or w.unconfirmed) or not self._held_back(w, now)
            ] or closed
            if len(closed) < len(workers) and not request.troubled:
                able = able + [w for w in workers if w.breaker.takes_probe(now)]
        if not request.avoided:
            return able
        return [w for w in able if w.instance not in request.avoided] or able

    def _held_back(self, worker: Worker, now: float) -> bool:
        oldest = next(iter(worker.load.pending_pulls.values()), now)
        if now - oldest > OVERDUE_LANDING_S:
            return True
        num_faults = self._registry.breakers.num_faults
        if len(worker.unconfirmed) < num_faults:
            return False
        newest = islice(reversed(worker.unconfirmed.values()), num_faults)
        return sum(now - at < HELD_BACK_S for at in newest) >= num_faults


def large_enough(workers: Iterable[Worker], num_tokens: int) -> list[Worker]:
    """The workers that take work and can hold ``num_tokens``; if none can, the largest ones."""
    return _long_enough([worker for worker in workers if not worker.draining], num_tokens)


def without(workers: list[Worker], reserved: set[str]) -> list[Worker]:
    """The workers that are reserved for no request, and are not among ``reserved``."""
    return [w for w in workers if w.reserved_for is None and w.instance not in reserved]


def _long_enough(workers: Sequence[Worker], num_tokens: int) -> list[Worker]:
    longest = max((worker.hello.max_seq_len for worker in workers), default=0)
    return [w for w in workers if w.hello.max_seq_len >= min(num_tokens, longest)]


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
    taking = (w for w in room if w.load.tokens_ahead < limits.max_tokens_ahead)
    fitting = (Place(w, reuses(w)) for w in taking)
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


def has_room_for(
    worker: Worker, request: Request, limits: PlacementLimits, without: Sequence[Request]
) -> bool:
    """True if the worker would take the request ``without`` some of the worker's requests, and
    without any reuse of kept prefixes."""
    load, num_tokens = worker.load, request.num_tokens
    ahead = load.tokens_ahead - sum(map(load.ahead_of, without))
    if worker.role == "prefill":
        fits = load.has_room(num_tokens, share=limits.prefill_watermark, without=without)
        return fits and ahead < limits.max_tokens_ahead
    fits = load.has_room(num_tokens + 1, growing=True, without=without)
    if request.state is State.HANDOFF:
        return fits
    return fits and (ahead == 0 or ahead + num_tokens <= limits.max_tokens_ahead_generating)


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
